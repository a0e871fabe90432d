"""Face of the accounts: people, keys, sessions and permissions."""

from app.accounts.people import (
    SEEN_EVERY,
    SESSION_IDLE,
    SESSION_LIFETIME,
    WrongPassword,
    account_of_key,
    account_sees_more,
    add_account,
    add_annotator,
    add_key,
    all_accounts,
    annotator_of_account,
    choose_language,
    choose_password,
    confirm_password,
    count_annotators,
    existing_account,
    has_accounts,
    issue_one_time_password,
    keys_by_account,
    last_sign_ins,
    locked_annotator,
    needs_password,
    outside_annotator,
    read_own_annotator,
    reading_annotators,
    revoke_key,
    set_disabled,
    sign_out,
)
from app.accounts.permissions import (
    GuardedRoute,
    RequireScope,
    RequireServiceScope,
    allow_everyone,
    caller_of,
    require_monitoring_token,
)
from app.accounts.sign_in import refuse_cross_site, sign_in
from app.accounts.single_sign_on import (
    COOKIE_SECONDS,
    OidcProvider,
    begin_oidc_session,
    begin_oidc_sign_in,
    finish_oidc_sign_in,
)
