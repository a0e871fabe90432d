"""The page Quality: one share of second reads, an account of every label, and numbers that are those of the API."""

import re

from tests.app.test_leases import set_policy
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, collect


def test_the_share_of_second_reads_is_that_of_todays_rule_everywhere(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(40)], patients=True)
    probs = sorted(case["prediction"]["disagreement_prob"] or 0.0 for case in service.items("/v1/cases"))
    set_policy(service, rule="disagreement", threshold=probs[30])  # nothing is planned by it
    judged = [case for case in service.items("/v1/cases") if case["partition"] == "evaluation"]
    share = sum(case["prediction"]["triage"]["decision"] == "second_read" for case in judged) / len(judged)
    assert 0 < share < 1
    sentence = re.search(r"Second reads of (\d+)% of the cells", report_page(service))
    policy = re.search(r"The current policy selects (\d+)%", report_page(service, path="/policy"))
    assert sentence is not None
    assert policy is not None
    assert [int(sentence[1]), int(policy[1])] == [round(100 * share)] * 2
