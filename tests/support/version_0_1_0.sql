BEGIN TRANSACTION;
CREATE TABLE accounts (
	name VARCHAR(100) NOT NULL, 
	role VARCHAR(20) NOT NULL, 
	disabled_at DATETIME, 
	one_time_sha256 VARCHAR(64), 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, password_hash VARCHAR(200), failed_sign_ins INTEGER DEFAULT '0' NOT NULL, locked_until DATETIME, oidc_subject VARCHAR(500), 
	CONSTRAINT pk_accounts PRIMARY KEY (id), 
	CONSTRAINT ck_accounts_role CHECK (role IN ('viewer', 'annotator', 'admin', 'service')), 
	CONSTRAINT uq_accounts_name UNIQUE (name)
);
INSERT INTO "accounts" VALUES('admin','admin',NULL,NULL,'01a20481a48c73d3812b4df28c939eea','2026-11-22 18:25:34.860890',NULL,0,NULL,NULL);
INSERT INTO "accounts" VALUES('viewer','viewer',NULL,NULL,'01a20481a4907137a25e36ccd05f302d','2026-11-22 18:25:34.864583',NULL,0,NULL,NULL);
INSERT INTO "accounts" VALUES('anna','annotator',NULL,NULL,'01a20481a492743d828540e9b19caea3','2026-11-22 18:25:34.866603',NULL,0,NULL,NULL);
INSERT INTO "accounts" VALUES('ben','annotator',NULL,NULL,'01a20481a4947729bbc3abe97d40f3c8','2026-11-22 18:25:34.868403',NULL,0,NULL,NULL);
INSERT INTO "accounts" VALUES('outside','service',NULL,NULL,'01a20481a49674b18d8574d8e5bf8e0c','2026-11-22 18:25:34.870472',NULL,0,NULL,NULL);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0004');
CREATE TABLE aliases (
	name VARCHAR(20) NOT NULL, 
	release_id CHAR(32) NOT NULL, 
	revision INTEGER NOT NULL, 
	CONSTRAINT pk_aliases PRIMARY KEY (name), 
	CONSTRAINT ck_aliases_name CHECK (name IN ('champion', 'challenger')), 
	CONSTRAINT fk_aliases_release_id_releases FOREIGN KEY(release_id) REFERENCES releases (id)
);
INSERT INTO "aliases" VALUES('champion','01a20481a45672f4b423ee0c28fc835a',1);
CREATE TABLE annotators (
	name VARCHAR(100) NOT NULL, 
	account_id CHAR(32), 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_annotators PRIMARY KEY (id), 
	CONSTRAINT fk_annotators_account_id_accounts FOREIGN KEY(account_id) REFERENCES accounts (id), 
	CONSTRAINT uq_annotators_account_id UNIQUE (account_id), 
	CONSTRAINT uq_annotators_name UNIQUE (name)
);
INSERT INTO "annotators" VALUES('r0',NULL,'01a20481a5aa729bab53758a918bc0b9','2026-11-22 18:25:35.146289');
INSERT INTO "annotators" VALUES('r1',NULL,'01a20481a62370c0884be86e4ad2db76','2026-11-22 18:25:35.267051');
INSERT INTO "annotators" VALUES('r2',NULL,'01a20481a6ad76518d1f89f88cfc89ed','2026-11-22 18:25:35.405020');
INSERT INTO "annotators" VALUES('anna','01a20481a492743d828540e9b19caea3','01a20481a71375dcaf23e6e6b7a6406a','2026-11-22 18:25:35.507424');
INSERT INTO "annotators" VALUES('ben','01a20481a4947729bbc3abe97d40f3c8','01a20481a77275a4aa848c3d69a11788','2026-11-22 18:25:35.602207');
CREATE TABLE api_keys (
	account_id CHAR(32) NOT NULL, 
	secret_sha256 VARCHAR(64) NOT NULL, 
	scopes JSON NOT NULL, 
	expires_at DATETIME, 
	revoked_at DATETIME, 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_api_keys PRIMARY KEY (id), 
	CONSTRAINT fk_api_keys_account_id_accounts FOREIGN KEY(account_id) REFERENCES accounts (id)
);
INSERT INTO "api_keys" VALUES('01a20481a48c73d3812b4df28c939eea','8e29d95938817a443f5f6fc979c9503b99c275a33ba2554e240a4c58b5472b60','[]',NULL,NULL,'01a20481a48f7253904c97fe1a7c72ea','2026-11-22 18:25:34.863256');
INSERT INTO "api_keys" VALUES('01a20481a4907137a25e36ccd05f302d','e153bfe00f9aa7bf3535e674af97cca0958af1804f08e3eb87e283231c70f9d3','[]',NULL,NULL,'01a20481a4917531b065adfb9d2287c4','2026-11-22 18:25:34.865673');
INSERT INTO "api_keys" VALUES('01a20481a492743d828540e9b19caea3','4b7fe95c131408c174dba076d056f6fa9ad5c90c4338fc2c418abf869529a846','[]',NULL,NULL,'01a20481a49370c2bb71d86bc2d588ab','2026-11-22 18:25:34.867516');
INSERT INTO "api_keys" VALUES('01a20481a4947729bbc3abe97d40f3c8','a51b3af472caf5d7be876cea19bb1436e1128cf75bef50876fbefba02bce2a08','[]',NULL,NULL,'01a20481a495708fac4bd0b6be9e9375','2026-11-22 18:25:34.869540');
INSERT INTO "api_keys" VALUES('01a20481a49674b18d8574d8e5bf8e0c','23cac15f22b3c601de6337d256bcb22fb6a515805002047cd73b0c324f18a6a1','["labels:write"]',NULL,NULL,'01a20481a49775cda3643145d42769f1','2026-11-22 18:25:34.871353');
CREATE TABLE audit_events (
	sequence INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	actor VARCHAR(100) NOT NULL, 
	action VARCHAR(50) NOT NULL, 
	object VARCHAR(100) NOT NULL, 
	details JSON NOT NULL, 
	reason TEXT, 
	request_id VARCHAR(100), 
	digest VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_audit_events PRIMARY KEY (sequence)
);
INSERT INTO "audit_events" VALUES(1,'2026-11-22 18:25:34.820641','command line','release.add','01a20481-a456-72f4-b423-ee0c28fc835a','{"name": "small cells", "card_sha256": "b58804b318b24d3837a2c11cc27bee48da5d61055eae8a27752f6996b7248385", "alias": "champion"}',NULL,NULL,'03c516b3a72c5e0d16149bd623d19d0dc09184d4c6d26c4ae32c4104ddf65fba');
INSERT INTO "audit_events" VALUES(2,'2026-11-22 18:25:34.861700','command line','account.add','01a20481-a48c-73d3-812b-4df28c939eea','{"role": "admin"}',NULL,NULL,'573e714dd301f6c8b82feac55143ef22e7e1bfcce42ee48e2be8d017b287efc7');
INSERT INTO "audit_events" VALUES(3,'2026-11-22 18:25:34.863795','command line','key.add','01a20481-a48f-7253-904c-97fe1a7c72ea','{"account": "admin", "scopes": []}',NULL,NULL,'509ca9471f3c82e29b29a1e3a43de2d9fae2477179ac11de022c0e401dc0fd8a');
INSERT INTO "audit_events" VALUES(4,'2026-11-22 18:25:34.864972','command line','account.add','01a20481-a490-7137-a25e-36ccd05f302d','{"role": "viewer"}',NULL,NULL,'3b92f5588f905cf1479eeb4ba2743d08e03642eceb589a84107894949896cae7');
INSERT INTO "audit_events" VALUES(5,'2026-11-22 18:25:34.865963','command line','key.add','01a20481-a491-7531-b065-adfb9d2287c4','{"account": "viewer", "scopes": []}',NULL,NULL,'694f1d3b89656108e2fe4b8a2b311605b0e5269fe3d7bc0fea50e0b040e9bd42');
INSERT INTO "audit_events" VALUES(6,'2026-11-22 18:25:34.866885','command line','account.add','01a20481-a492-743d-8285-40e9b19caea3','{"role": "annotator"}',NULL,NULL,'260dd774b918e0faa24da13b1dce2bd7d80fd9b36ec1ebf48097f7b02bdb0ea5');
INSERT INTO "audit_events" VALUES(7,'2026-11-22 18:25:34.867793','command line','key.add','01a20481-a493-70c2-bb71-d86bc2d588ab','{"account": "anna", "scopes": []}',NULL,NULL,'6a2f91a1ec5dbe96d85c13639edb1ccde6be5d15d5ef05a774a78c21da076070');
INSERT INTO "audit_events" VALUES(8,'2026-11-22 18:25:34.868871','command line','account.add','01a20481-a494-7729-bbc3-abe97d40f3c8','{"role": "annotator"}',NULL,NULL,'1471ced006e2b093cb8ba13b9589639adf9f9c9845221cfc77ab571e234ef2b8');
INSERT INTO "audit_events" VALUES(9,'2026-11-22 18:25:34.869811','command line','key.add','01a20481-a495-708f-ac4b-d0b6be9e9375','{"account": "ben", "scopes": []}',NULL,NULL,'ba9266eb87dabf6bdb786cd308a006e53b4c205dd46ccf0d3506e3262ed4d196');
INSERT INTO "audit_events" VALUES(10,'2026-11-22 18:25:34.870748','command line','account.add','01a20481-a496-74b1-8d85-74d8e5bf8e0c','{"role": "service"}',NULL,NULL,'fed0c6868e886f1868eaf7ff95dc5bac8a05a79c6fbf9711b47d258d239437fa');
INSERT INTO "audit_events" VALUES(11,'2026-11-22 18:25:34.871609','command line','key.add','01a20481-a497-75cd-a364-3145d42769f1','{"account": "outside", "scopes": ["labels:write"]}',NULL,NULL,'05ea5408e1cee2d56f2d6325537b5b4988e361cee1282aae3e381b7a5b31ab57');
INSERT INTO "audit_events" VALUES(12,'2026-11-22 18:25:35.007789','admin','case.add','01a20481-a50d-70ac-bd1b-cd2ccbafbf74','{"image_sha256": "2bb6f2dd9454b127e21f846ed6fee02d52d8cf6e7f67b54714ae71196b24504a", "release": "01a20481-a456-72f4-b423-ee0c28fc835a"}',NULL,'7db29d78a4614c3fabdacd78f1326a85','df3c8bbd5ff11aae1607d674b558ee54b80a792a2b61446260a15d224cf704b7');
INSERT INTO "audit_events" VALUES(13,'2026-11-22 18:25:35.083747','admin','case.add','01a20481-a566-709c-8814-37a702bee94b','{"image_sha256": "df8509b9a43396ca32c4da85bf6e2b5027f0b225a5ebb69358b869766456cdb3", "release": "01a20481-a456-72f4-b423-ee0c28fc835a"}',NULL,'c3240c33689f4bacb47b2f711fc9bc7a','a5b9365240c265da3b51560e6e69a764ecce63e736ee1376f31e8d9e1c8f83fd');
INSERT INTO "audit_events" VALUES(14,'2026-11-22 18:25:35.167478','outside','label.add','01a20481-a5b2-7352-b0d6-3c1885ad46fe','{"case": "01a20481-a566-709c-8814-37a702bee94b", "annotator": "01a20481-a5aa-729b-ab53-758a918bc0b9", "label": "eosinophil", "blind": true, "round": "planned"}',NULL,'ea06ec91b54946c4b9f5bb8eb0dd9e43','b7b62e4b4fbb11089e096ebeec3b3ea1ba174fff31216c5722f64c91159f0828');
INSERT INTO "audit_events" VALUES(15,'2026-11-22 18:25:35.201986','admin','case.add','01a20481-a5dc-736b-b206-6cb5fea38ddf','{"image_sha256": "3b32ae084ed56b9335de7c025cc41ce744bef50d7e06074fe43fa1f91a368387", "release": "01a20481-a456-72f4-b423-ee0c28fc835a"}',NULL,'85f126ea7aa94d99a2a4c75b9b81d27d','3011d521245672cc2b1fb81859766418417b25ced775e6190f77f7099293b6ff');
INSERT INTO "audit_events" VALUES(16,'2026-11-22 18:25:35.253757','outside','label.add','01a20481-a610-708d-9db3-e2e21ad99268','{"case": "01a20481-a5dc-736b-b206-6cb5fea38ddf", "annotator": "01a20481-a5aa-729b-ab53-758a918bc0b9", "label": "segmented_neutrophil", "blind": true, "round": "planned"}',NULL,'711c935622a5497aa73e19a7c1a276c0','421d5aab4be71347894a7ad8be5f50993cea96b49d030c1a5bebd2c0b90aadb1');
INSERT INTO "audit_events" VALUES(17,'2026-11-22 18:25:35.276581','outside','label.add','01a20481-a625-7581-b6fb-7778ea71072a','{"case": "01a20481-a5dc-736b-b206-6cb5fea38ddf", "annotator": "01a20481-a623-70c0-884b-e86e4ad2db76", "label": "band_neutrophil", "blind": true, "round": "planned"}',NULL,'9ed9e2ce76c542d8a0f49c06e44e2729','5ef56feab702c08d5e8d85e02a898224ca2a810b83c31d202b7682793100e2a7');
INSERT INTO "audit_events" VALUES(18,'2026-11-22 18:25:35.313506','admin','case.add','01a20481-a64c-7320-92fa-757a8db8cdbf','{"image_sha256": "0f19fd9453ee0cfb3a00d57430922d9eb4794a6bececef5aab4ce7bdd9d6be70", "release": "01a20481-a456-72f4-b423-ee0c28fc835a"}',NULL,'dc2e78460e54428f8bc76ec83ac4ef04','9863d78294dacb81a5fc0eec20b4a384bcef29527577e5ec81387adc05d72237');
INSERT INTO "audit_events" VALUES(19,'2026-11-22 18:25:35.367357','outside','label.add','01a20481-a681-7022-80d2-96a8b2f036a4','{"case": "01a20481-a64c-7320-92fa-757a8db8cdbf", "annotator": "01a20481-a5aa-729b-ab53-758a918bc0b9", "label": "monocyte", "blind": true, "round": "planned"}',NULL,'eb4a27d4cb0a4aa2af000fe8ad9fef16','4b94cbd27cd6ef827d09a3f0ee33700c548bb654c84c9e5ce6a71da0190df8bf');
INSERT INTO "audit_events" VALUES(20,'2026-11-22 18:25:35.393502','outside','label.add','01a20481-a69b-75a8-a0f4-394b2bbfbaed','{"case": "01a20481-a64c-7320-92fa-757a8db8cdbf", "annotator": "01a20481-a623-70c0-884b-e86e4ad2db76", "label": "monocyte", "blind": true, "round": "planned"}',NULL,'53363d1f3fef4a7bb0ac1562efe20abf','333584ed0372b0ae4aef9705c6e8b376e9f11e5f9745143b8213e0fafc8dc20e');
INSERT INTO "audit_events" VALUES(21,'2026-11-22 18:25:35.415205','outside','label.add','01a20481-a6af-7641-b6ff-1a3f716090fb','{"case": "01a20481-a64c-7320-92fa-757a8db8cdbf", "annotator": "01a20481-a6ad-7651-8d1f-89f88cfc89ed", "label": "blast", "blind": true, "round": "planned"}',NULL,'c7927437bb974f258bfb3f6283dcce01','5292d97f74cae0ddacd9a843664bed300fb3f89dca74e441f8ac48d455f41d62');
INSERT INTO "audit_events" VALUES(22,'2026-11-22 18:25:35.449640','admin','case.add','01a20481-a6d4-76bf-aaf1-40fcc59a5e2c','{"image_sha256": "531a90bdc385e1964f06140edf26664637b6eefb29f9b801ceaa78de8ad383fc", "release": "01a20481-a456-72f4-b423-ee0c28fc835a"}',NULL,'84baa68e83464cd8968cae0e104bea8d','092bb90e077219f90f0ba44900bbfaa17d017097fbbeba68c73119adc2a39336');
INSERT INTO "audit_events" VALUES(23,'2026-11-22 18:25:35.493308','admin','case.add','01a20481-a700-711a-8af7-cb56e05cfd1a','{"image_sha256": "542e558130dd373a48df102c9d2434af636ec53d452e2e640bcba69ceb2c1344", "release": "01a20481-a456-72f4-b423-ee0c28fc835a"}',NULL,'9693fe4273874a6fae1df58438ac4b10','d0cd6f9e6dbf337a2dedff388223d4beb660f11514c0516022b3522841058a71');
INSERT INTO "audit_events" VALUES(24,'2026-11-22 18:25:35.552594','anna','label.add','01a20481-a735-7711-8f7f-506d9f7cf394','{"case": "01a20481-a6d4-76bf-aaf1-40fcc59a5e2c", "annotator": "01a20481-a713-75dc-af23-e6e6b7a6406a", "label": "blast", "blind": true, "round": "planned"}',NULL,'233af1575f744dd3993a2b695c74ac88','ceaeff71e78c8ec0dd91df4f6da5805f0c1df0b4988f9fd0d613730d6895007c');
INSERT INTO "audit_events" VALUES(25,'2026-11-22 18:25:35.622409','admin','case.erase','01a20481-a50d-70ac-bd1b-cd2ccbafbf74','{}','asked for on paper',NULL,'3540be23cdb05d22f2a503d9bd12f728d7cb78834a63b870f037f0f2a2650988');
INSERT INTO "audit_events" VALUES(26,'2026-11-22 18:25:35.623544','admin','case.erase','01a20481-a566-709c-8814-37a702bee94b','{}','asked for on paper',NULL,'66b79117f0f4bcec0ea11ed5cc2e3d33faa8256665635d13a833d0e147b60afc');
INSERT INTO "audit_events" VALUES(27,'2026-11-22 18:25:35.624415','admin','case.erase','01a20481-a5dc-736b-b206-6cb5fea38ddf','{}','asked for on paper',NULL,'7b0f89a8d2cb611298b49477982128c73137001219a2fd577a010ac8d20077a2');
CREATE TABLE audit_head (
	id INTEGER NOT NULL, 
	sequence INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_audit_head PRIMARY KEY (id)
);
INSERT INTO "audit_head" VALUES(1,27,'7b0f89a8d2cb611298b49477982128c73137001219a2fd577a010ac8d20077a2');
CREATE TABLE browser_sessions (
	account_id CHAR(32) NOT NULL, 
	token_sha256 VARCHAR(64) NOT NULL, 
	seen_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_browser_sessions PRIMARY KEY (id), 
	CONSTRAINT fk_browser_sessions_account_id_accounts FOREIGN KEY(account_id) REFERENCES accounts (id), 
	CONSTRAINT uq_browser_sessions_token_sha256 UNIQUE (token_sha256)
);
CREATE TABLE case_changes (
	sequence INTEGER NOT NULL, 
	case_id CHAR(32) NOT NULL, 
	CONSTRAINT pk_case_changes PRIMARY KEY (sequence, case_id), 
	CONSTRAINT fk_case_changes_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id), 
	CONSTRAINT fk_case_changes_sequence_audit_events FOREIGN KEY(sequence) REFERENCES audit_events (sequence)
);
INSERT INTO "case_changes" VALUES(12,'01a20481a50d70acbd1bcd2ccbafbf74');
INSERT INTO "case_changes" VALUES(13,'01a20481a566709c881437a702bee94b');
INSERT INTO "case_changes" VALUES(14,'01a20481a566709c881437a702bee94b');
INSERT INTO "case_changes" VALUES(15,'01a20481a5dc736bb2066cb5fea38ddf');
INSERT INTO "case_changes" VALUES(16,'01a20481a5dc736bb2066cb5fea38ddf');
INSERT INTO "case_changes" VALUES(17,'01a20481a5dc736bb2066cb5fea38ddf');
INSERT INTO "case_changes" VALUES(18,'01a20481a64c732092fa757a8db8cdbf');
INSERT INTO "case_changes" VALUES(19,'01a20481a64c732092fa757a8db8cdbf');
INSERT INTO "case_changes" VALUES(20,'01a20481a64c732092fa757a8db8cdbf');
INSERT INTO "case_changes" VALUES(21,'01a20481a64c732092fa757a8db8cdbf');
INSERT INTO "case_changes" VALUES(22,'01a20481a6d476bfaaf140fcc59a5e2c');
INSERT INTO "case_changes" VALUES(23,'01a20481a700711a8af7cb56e05cfd1a');
INSERT INTO "case_changes" VALUES(24,'01a20481a6d476bfaaf140fcc59a5e2c');
INSERT INTO "case_changes" VALUES(25,'01a20481a50d70acbd1bcd2ccbafbf74');
INSERT INTO "case_changes" VALUES(26,'01a20481a566709c881437a702bee94b');
INSERT INTO "case_changes" VALUES(27,'01a20481a5dc736bb2066cb5fea38ddf');
CREATE TABLE cases (
	external_id VARCHAR(200) NOT NULL, 
	patient VARCHAR(200), 
	site VARCHAR(200), 
	case_metadata JSON NOT NULL, 
	image_sha256 VARCHAR(64) NOT NULL, 
	stored_sha256 VARCHAR(64) NOT NULL, 
	width INTEGER NOT NULL, 
	height INTEGER NOT NULL, 
	same_image_as CHAR(32), 
	partition VARCHAR(20) NOT NULL, 
	created_by CHAR(32) NOT NULL, 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, u FLOAT DEFAULT '0' NOT NULL, pi FLOAT DEFAULT '0' NOT NULL, need FLOAT DEFAULT '1' NOT NULL, waiting BOOLEAN DEFAULT 1 NOT NULL, image_hash BIGINT, stain JSON, erased_at DATETIME, 
	CONSTRAINT pk_cases PRIMARY KEY (id), 
	CONSTRAINT ck_cases_partition CHECK (partition IN ('calibration', 'evaluation')), 
	CONSTRAINT fk_cases_created_by_accounts FOREIGN KEY(created_by) REFERENCES accounts (id), 
	CONSTRAINT fk_cases_same_image_as_cases FOREIGN KEY(same_image_as) REFERENCES cases (id), 
	CONSTRAINT uq_cases_external_id UNIQUE (external_id)
);
INSERT INTO "cases" VALUES('erased-01a20481-a50d-70ac-bd1b-cd2ccbafbf74','erased-24e3789a36ea0f6c',NULL,'{}','0000000000000000000000000000000000000000000000000000000000000000','0000000000000000000000000000000000000000000000000000000000000000',96,96,NULL,'calibration','01a20481a48c73d3812b4df28c939eea','01a20481a50d70acbd1bcd2ccbafbf74','2026-11-22 18:25:34.989859',8.09541480247547573512e-01,1.0,4.49129894824380315743e-01,0,NULL,NULL,'2026-11-22 18:25:35.616370');
INSERT INTO "cases" VALUES('erased-01a20481-a566-709c-8814-37a702bee94b','erased-24e3789a36ea0f6c',NULL,'{}','0000000000000000000000000000000000000000000000000000000000000000','0000000000000000000000000000000000000000000000000000000000000000',96,96,NULL,'calibration','01a20481a48c73d3812b4df28c939eea','01a20481a566709c881437a702bee94b','2026-11-22 18:25:35.078337',6.9616419589687916769e-01,1.0,3.54130729653435116777e-01,0,NULL,NULL,'2026-11-22 18:25:35.616391');
INSERT INTO "cases" VALUES('erased-01a20481-a5dc-736b-b206-6cb5fea38ddf','erased-24e3789a36ea0f6c',NULL,'{}','0000000000000000000000000000000000000000000000000000000000000000','0000000000000000000000000000000000000000000000000000000000000000',96,96,NULL,'calibration','01a20481a48c73d3812b4df28c939eea','01a20481a5dc736bb2066cb5fea38ddf','2026-11-22 18:25:35.196823',3.02795497479238950866e-01,1.0,3.80120531134302386266e-01,0,NULL,NULL,'2026-11-22 18:25:35.616399');
INSERT INTO "cases" VALUES('case-3','p1',NULL,'{}','0f19fd9453ee0cfb3a00d57430922d9eb4794a6bececef5aab4ce7bdd9d6be70','8d9b8e80023846d86ebfdf760b518e56560eeaa37ffcef957406d63f2cb83028',96,96,NULL,'evaluation','01a20481a48c73d3812b4df28c939eea','01a20481a64c732092fa757a8db8cdbf','2026-11-22 18:25:35.308635',6.82660812715615517021e-01,0.1,1.90513999783643972474e-01,1,7828467874419074086,'[0.08232579750614683, 0.13527460411778416, 0.07698700183642575]',NULL);
INSERT INTO "cases" VALUES('case-4','p1',NULL,'{}','531a90bdc385e1964f06140edf26664637b6eefb29f9b801ceaa78de8ad383fc','99dc74e8589669271d4087fe09fe663b4225e0fd8096ead67166a6b2ad7af41e',96,96,NULL,'evaluation','01a20481a48c73d3812b4df28c939eea','01a20481a6d476bfaaf140fcc59a5e2c','2026-11-22 18:25:35.444580',4.37344918418455963493e-01,1.0,2.73138903316099135309e-02,1,-8531200647409238919,'[0.077762816037475, 0.15634861990071325, 0.11035390939591433]',NULL);
INSERT INTO "cases" VALUES('case without patient',NULL,NULL,'{}','542e558130dd373a48df102c9d2434af636ec53d452e2e640bcba69ceb2c1344','e453a2938f3234c86d16a3cbddf9ce115905d227b90120244e67bf5ca89e2c30',96,96,NULL,'evaluation','01a20481a48c73d3812b4df28c939eea','01a20481a700711a8af7cb56e05cfd1a','2026-11-22 18:25:35.488572',5.0434724812515963066e-01,0.1,1.03142371762325657513e-01,1,-4265879103723294445,'[0.08616349883698299, 0.1470810056963545, 0.077733242715126]',NULL);
CREATE TABLE daily_thresholds (
	policy_version INTEGER NOT NULL, 
	day VARCHAR(10) NOT NULL, 
	threshold FLOAT, 
	n_cases INTEGER NOT NULL, 
	CONSTRAINT pk_daily_thresholds PRIMARY KEY (policy_version, day), 
	CONSTRAINT fk_daily_thresholds_policy_version_policies FOREIGN KEY(policy_version) REFERENCES policies (version)
);
CREATE TABLE evaluations (
	job_id CHAR(32) NOT NULL, 
	release_id CHAR(32) NOT NULL, 
	snapshot_sha256 VARCHAR(64) NOT NULL, 
	document JSON NOT NULL, 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_evaluations PRIMARY KEY (id), 
	CONSTRAINT fk_evaluations_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id), 
	CONSTRAINT fk_evaluations_release_id_releases FOREIGN KEY(release_id) REFERENCES releases (id), 
	CONSTRAINT uq_evaluations_job_id UNIQUE (job_id)
);
CREATE TABLE exposures (
	case_id CHAR(32) NOT NULL, 
	annotator_id CHAR(32) NOT NULL, 
	release_id CHAR(32) NOT NULL, 
	label_id CHAR(32), 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_exposures PRIMARY KEY (id), 
	CONSTRAINT fk_exposures_annotator_id_annotators FOREIGN KEY(annotator_id) REFERENCES annotators (id), 
	CONSTRAINT fk_exposures_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id), 
	CONSTRAINT fk_exposures_label_id_labels FOREIGN KEY(label_id) REFERENCES labels (id), 
	CONSTRAINT fk_exposures_release_id_releases FOREIGN KEY(release_id) REFERENCES releases (id), 
	CONSTRAINT uq_exposures_case_id_annotator_id UNIQUE (case_id, annotator_id)
);
INSERT INTO "exposures" VALUES('01a20481a6d476bfaaf140fcc59a5e2c','01a20481a71375dcaf23e6e6b7a6406a','01a20481a45672f4b423ee0c28fc835a','01a20481a73577118f7f506d9f7cf394','01a20481a73d701b821653ede8392366','2026-11-22 18:25:35.549526');
CREATE TABLE idempotency_records (
	account_id CHAR(32) NOT NULL, 
	"key" VARCHAR(200) NOT NULL, 
	request_sha256 VARCHAR(64) NOT NULL, 
	status INTEGER NOT NULL, 
	body JSON NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_idempotency_records PRIMARY KEY (account_id, "key"), 
	CONSTRAINT fk_idempotency_records_account_id_accounts FOREIGN KEY(account_id) REFERENCES accounts (id)
);
INSERT INTO "idempotency_records" VALUES('01a20481a49674b18d8574d8e5bf8e0c','1621fbcda9d3453a817714a28e0eb6f8','57268fedf1f4b4242b28e95e95c5764f72596c0481ebf0d0fa7e898d505d5d6f',201,'{"label": {"id": "01a20481-a5b2-7352-b0d6-3c1885ad46fe", "case_id": "01a20481-a566-709c-8814-37a702bee94b", "annotator": "r0", "label": "eosinophil", "confidence": null, "note": null, "blind": true, "round": "planned", "kind": "label", "supersedes": null, "post_reveal": false, "reason": null, "reading_seconds": null, "created_at": "2026-11-22T18:25:35.154463Z"}, "posterior": {"class_probs": {"blast": 0.039731564251249636, "lymphocyte": 0.05844393891434844, "monocyte": 0.08339571311113791, "immature_granulocyte": 0.09410798877071681, "band_neutrophil": 0.03707483883482253, "segmented_neutrophil": 0.03684579517816765, "eosinophil": 0.6158251954619203, "basophil": 0.034574965477636915}, "log_concentration": 0.5378884460365418, "disagreement_prob": 0.37628396382136464, "disagreement_calibrated": true, "class_intervals": {"blast": [1.3884948200476908e-24, 0.44978779423948145], "lymphocyte": [4.990324294403841e-17, 0.5508142308031945], "monocyte": [3.229282196862165e-12, 0.6403367500079145], "immature_granulocyte": [6.24023734588723e-11, 0.6697813941036611], "band_neutrophil": [2.83694509132348e-26, 0.4314111939121342], "segmented_neutrophil": [1.9759873923829785e-26, 0.4297637917871495], "eosinophil": [0.04522651185619849, 0.9965446583632135], "basophil": [4.227781370039828e-28, 0.41284211965481243]}, "release": "01a20481-a456-72f4-b423-ee0c28fc835a", "n_labels": 1, "label_counts": {"blast": 0, "lymphocyte": 0, "monocyte": 0, "immature_granulocyte": 0, "band_neutrophil": 0, "segmented_neutrophil": 0, "eosinophil": 1, "basophil": 0}, "majority_prob": 0.7108037813792805, "further_labels_expected": 18}, "hidden_because": null}','2026-11-22 18:25:35.141468');
INSERT INTO "idempotency_records" VALUES('01a20481a49674b18d8574d8e5bf8e0c','b65d3c8fdab64375937feda7c8fb5f5d','3390fdac23e6681b29bc70751fbefc7de868abc1891a042781f008b079a8eea0',201,'{"label": {"id": "01a20481-a610-708d-9db3-e2e21ad99268", "case_id": "01a20481-a5dc-736b-b206-6cb5fea38ddf", "annotator": "r0", "label": "segmented_neutrophil", "confidence": null, "note": null, "blind": true, "round": "planned", "kind": "label", "supersedes": null, "post_reveal": false, "reason": null, "reading_seconds": null, "created_at": "2026-11-22T18:25:35.248253Z"}, "posterior": {"class_probs": {"blast": 0.04029015632906742, "lymphocyte": 0.06088826083412888, "monocyte": 0.08092685944791783, "immature_granulocyte": 0.10630817942662384, "band_neutrophil": 0.04176373007030282, "segmented_neutrophil": 0.5976387525981544, "eosinophil": 0.034529111993207594, "basophil": 0.03765494930059713}, "log_concentration": 0.5908360173611765, "disagreement_prob": 0.3959756288868931, "disagreement_calibrated": true, "class_intervals": {"blast": [4.338777022243517e-23, 0.4442188180481645], "lymphocyte": [1.2767838365212959e-15, 0.5493063448833575], "monocyte": [5.397898052128268e-12, 0.6197739466397585], "immature_granulocyte": [2.3552618625117658e-09, 0.6853608329835714], "band_neutrophil": [2.604685233028959e-22, 0.45344689771222774], "segmented_neutrophil": [0.04439364452892754, 0.994268737161844], "eosinophil": [9.07116790369913e-27, 0.4045141891511828], "basophil": [1.2408887920233417e-24, 0.4268207530477928]}, "release": "01a20481-a456-72f4-b423-ee0c28fc835a", "n_labels": 1, "label_counts": {"blast": 0, "lymphocyte": 0, "monocyte": 0, "immature_granulocyte": 0, "band_neutrophil": 0, "segmented_neutrophil": 1, "eosinophil": 0, "basophil": 0}, "majority_prob": 0.697400822866343, "further_labels_expected": 18}, "hidden_because": null}','2026-11-22 18:25:35.244807');
INSERT INTO "idempotency_records" VALUES('01a20481a49674b18d8574d8e5bf8e0c','59a816219af7414db96b5d7554099e0e','1c5c66785913a10dbe7c5e19964a6322082c0438e52c92d0c28f9a73bd6fdc74',201,'{"label": {"id": "01a20481-a625-7581-b6fb-7778ea71072a", "case_id": "01a20481-a5dc-736b-b206-6cb5fea38ddf", "annotator": "r1", "label": "band_neutrophil", "confidence": null, "note": null, "blind": true, "round": "planned", "kind": "label", "supersedes": null, "post_reveal": false, "reason": null, "reading_seconds": null, "created_at": "2026-11-22T18:25:35.269522Z"}, "posterior": {"class_probs": {"blast": 0.025929009876316682, "lymphocyte": 0.039185063061690464, "monocyte": 0.052081042345583854, "immature_granulocyte": 0.06841536706318306, "band_neutrophil": 0.3833203945916017, "segmented_neutrophil": 0.3846145691772204, "eosinophil": 0.022221449789868508, "basophil": 0.024233104094535197}, "log_concentration": 1.0315807823158765, "disagreement_prob": 0.5119678182106678, "disagreement_calibrated": true, "class_intervals": {"blast": [2.4651724812920007e-23, 0.2863206272477461], "lymphocyte": [7.210123631157132e-16, 0.36644652325205557], "monocyte": [3.029648908059018e-12, 0.42405637847418776], "immature_granulocyte": [1.3113791308722948e-09, 0.4811230147819635], "band_neutrophil": [0.019065823787521943, 0.8878063816429158], "segmented_neutrophil": [0.019338646664524155, 0.8886040723213271], "eosinophil": [5.1626436021128484e-27, 0.2575856660073619], "basophil": [7.055812001794644e-25, 0.2736337913266196]}, "release": "01a20481-a456-72f4-b423-ee0c28fc835a", "n_labels": 2, "label_counts": {"blast": 0, "lymphocyte": 0, "monocyte": 0, "immature_granulocyte": 0, "band_neutrophil": 1, "segmented_neutrophil": 1, "eosinophil": 0, "basophil": 0}, "majority_prob": 0.427233390150937, "further_labels_expected": 23}, "hidden_because": null}','2026-11-22 18:25:35.265619');
INSERT INTO "idempotency_records" VALUES('01a20481a48c73d3812b4df28c939eea','883d7927b98746eabb437d356acf0b20','2e49f0834eb401c1f99583b4e48e1aff6dda309cd0e2f69969a1b7f56e4d1663',201,'{"id": "01a20481-a64c-7320-92fa-757a8db8cdbf", "external_id": "case-3", "patient": "p1", "site": null, "metadata": {}, "width": 96, "height": 96, "partition": "evaluation", "same_image_as": null, "created_at": "2026-11-22T18:25:35.308635Z", "n_labels": 0, "prediction": {"class_probs": {"blast": 0.09389838109367481, "lymphocyte": 0.14078932373728456, "monocyte": 0.19127758469939493, "immature_granulocyte": 0.2278626744171381, "band_neutrophil": 0.09227211203454605, "segmented_neutrophil": 0.0924237462616188, "eosinophil": 0.07741692245109859, "basophil": 0.0840592553052442}, "log_concentration": -1.2458771557973662, "disagreement_prob": 0.19051399978364397, "disagreement_calibrated": true, "class_intervals": {"blast": [1.3320941083543858e-58, 0.9940128692855941], "lymphocyte": [8.447375044316564e-39, 0.9991311058539153], "monocyte": [2.655899414019401e-28, 0.9998524372024296], "immature_granulocyte": [1.3885402291323994e-23, 0.9999562839724523], "band_neutrophil": [1.1956537490195469e-59, 0.9935383801172369], "segmented_neutrophil": [1.5023688112455169e-59, 0.9935844030801161], "eosinophil": [3.033130220093504e-71, 0.986427488016273], "basophil": [1.4882288861508274e-65, 0.9903665435065352]}, "release": "01a20481-a456-72f4-b423-ee0c28fc835a", "classes": ["blast", "lymphocyte", "monocyte", "immature_granulocyte", "band_neutrophil", "segmented_neutrophil", "eosinophil", "basophil"], "triage": {"decision": "single_read", "priority": 0.2177302854670217, "expected_gain": 0.5142729346018313, "reason": "disagreement at most 0.20"}, "out_of_distribution": false, "image_sha256": "0f19fd9453ee0cfb3a00d57430922d9eb4794a6bececef5aab4ce7bdd9d6be70"}}','2026-11-22 18:25:35.305414');
INSERT INTO "idempotency_records" VALUES('01a20481a49674b18d8574d8e5bf8e0c','72af6af78e8f43c1907f4ff01c37dd5b','2181c2b703ab95ebccadea00882eeb373ab953f184a95c91f72b13fe38cba07c',201,'{"label": {"id": "01a20481-a681-7022-80d2-96a8b2f036a4", "case_id": "01a20481-a64c-7320-92fa-757a8db8cdbf", "annotator": "r0", "label": "monocyte", "confidence": null, "note": null, "blind": true, "round": "planned", "kind": "label", "supersedes": null, "post_reveal": false, "reason": null, "reading_seconds": null, "created_at": "2026-11-22T18:25:35.361959Z"}, "posterior": {"class_probs": {"blast": 0.020978272890582052, "lymphocyte": 0.031454395901615945, "monocyte": 0.8193195737423681, "immature_granulocyte": 0.05090785708788513, "band_neutrophil": 0.02061494057623812, "segmented_neutrophil": 0.02064881788230063, "eosinophil": 0.01729607376199562, "basophil": 0.018780068157014343}, "log_concentration": 0.25284871164699974, "disagreement_prob": 0.18191704810805093, "disagreement_calibrated": true, "class_intervals": {"blast": [3.4616713556071155e-60, 0.2972170179736801], "lymphocyte": [1.9938482363917693e-40, 0.4270150640426913], "monocyte": [0.11920339228415845, 0.9999998793478189], "immature_granulocyte": [2.6876311329547725e-25, 0.5771122607718016], "band_neutrophil": [3.1171228880596754e-61, 0.29174759938869155], "segmented_neutrophil": [3.915569017123664e-61, 0.29226076719413296], "eosinophil": [8.140558419550297e-73, 0.23816311777451107], "basophil": [3.942991567848309e-67, 0.26294660823720056]}, "release": "01a20481-a456-72f4-b423-ee0c28fc835a", "n_labels": 1, "label_counts": {"blast": 0, "lymphocyte": 0, "monocyte": 1, "immature_granulocyte": 0, "band_neutrophil": 0, "segmented_neutrophil": 0, "eosinophil": 0, "basophil": 0}, "majority_prob": 0.8727426873814577, "further_labels_expected": 8}, "hidden_because": null}','2026-11-22 18:25:35.357814');
INSERT INTO "idempotency_records" VALUES('01a20481a49674b18d8574d8e5bf8e0c','53cc7017703448d3897bfb7a0a492a51','02fa2d26581fa57a79a7c7f95082009138d13543eebb218a4c6cb0232bc989f1',201,'{"label": {"id": "01a20481-a69b-75a8-a0f4-394b2bbfbaed", "case_id": "01a20481-a64c-7320-92fa-757a8db8cdbf", "annotator": "r1", "label": "monocyte", "confidence": null, "note": null, "blind": true, "round": "planned", "kind": "label", "supersedes": null, "post_reveal": false, "reason": null, "reading_seconds": null, "created_at": "2026-11-22T18:25:35.387419Z"}, "posterior": {"class_probs": {"blast": 0.011808198664733678, "lymphocyte": 0.017704973027222386, "monocyte": 0.8982990459125597, "immature_granulocyte": 0.028654889428933322, "band_neutrophil": 0.01160368706497197, "segmented_neutrophil": 0.011622755839713273, "eosinophil": 0.009735571472769858, "basophil": 0.010570878589095875}, "log_concentration": 0.8275418972148263, "disagreement_prob": 0.13311917979136662, "disagreement_calibrated": true, "class_intervals": {"blast": [1.579178392651607e-60, 0.1502541106042717], "lymphocyte": [9.057475764947156e-41, 0.22715138841554067], "monocyte": [0.38415993836379153, 0.9999999487672577], "immature_granulocyte": [1.2111981832891875e-25, 0.32880777142919404], "band_neutrophil": [1.4222052983256161e-61, 0.14719305322783557], "segmented_neutrophil": [1.7864767885887075e-61, 0.14747969624012172], "eosinophil": [3.7190900242824814e-73, 0.11787705339774746], "basophil": [1.8003292923007433e-67, 0.13128747188759965]}, "release": "01a20481-a456-72f4-b423-ee0c28fc835a", "n_labels": 2, "label_counts": {"blast": 0, "lymphocyte": 0, "monocyte": 2, "immature_granulocyte": 0, "band_neutrophil": 0, "segmented_neutrophil": 0, "eosinophil": 0, "basophil": 0}, "majority_prob": 0.9592780850585383, "further_labels_expected": 5}, "hidden_because": null}','2026-11-22 18:25:35.382139');
INSERT INTO "idempotency_records" VALUES('01a20481a49674b18d8574d8e5bf8e0c','391ff0c83b354a9ba4a98422e8a9d3f5','0f3aacf2bf592536c439e9071d8b049e64a1ebad79dd1d89515cf68ae98fd6fc',201,'{"label": {"id": "01a20481-a6af-7641-b6ff-1a3f716090fb", "case_id": "01a20481-a64c-7320-92fa-757a8db8cdbf", "annotator": "r2", "label": "blast", "confidence": null, "note": null, "blind": true, "round": "planned", "kind": "label", "supersedes": null, "post_reveal": false, "reason": null, "reading_seconds": null, "created_at": "2026-11-22T18:25:35.407634Z"}, "posterior": {"class_probs": {"blast": 0.31238163085401116, "lymphocyte": 0.012319738599634448, "monocyte": 0.6250678503112047, "immature_granulocyte": 0.01993907287083114, "band_neutrophil": 0.008074250732413643, "segmented_neutrophil": 0.008087519451878336, "eosinophil": 0.006774350657194949, "basophil": 0.0073555865228315895}, "log_concentration": 1.1901847190040076, "disagreement_prob": 0.3917663253768885, "disagreement_calibrated": true, "class_intervals": {"blast": [0.012351403812301301, 0.807744075240134], "lymphocyte": [5.827290255709906e-41, 0.15321497162430062], "monocyte": [0.14353682990898686, 0.9742119529693182], "immature_granulocyte": [7.773244289901763e-26, 0.226722340608177], "band_neutrophil": [9.162466590293305e-62, 0.09767743030968609], "segmented_neutrophil": [1.1509213627486493e-61, 0.09787321457353039], "eosinophil": [2.3969925132162793e-73, 0.07777402210909166], "basophil": [1.160116386575723e-67, 0.0868493818309171]}, "release": "01a20481-a456-72f4-b423-ee0c28fc835a", "n_labels": 3, "label_counts": {"blast": 1, "lymphocyte": 0, "monocyte": 2, "immature_granulocyte": 0, "band_neutrophil": 0, "segmented_neutrophil": 0, "eosinophil": 0, "basophil": 0}, "majority_prob": 0.735657317000574, "further_labels_expected": 17}, "hidden_because": null}','2026-11-22 18:25:35.403415');
INSERT INTO "idempotency_records" VALUES('01a20481a48c73d3812b4df28c939eea','e1feb206025c49d7aac1b38ca10e3fe9','aa1b9030e3f6317974adc348c18d8b6c94ebc4c24d43d2928817584e800fac79',201,'{"id": "01a20481-a6d4-76bf-aaf1-40fcc59a5e2c", "external_id": "case-4", "patient": "p1", "site": null, "metadata": {}, "width": 96, "height": 96, "partition": "evaluation", "same_image_as": null, "created_at": "2026-11-22T18:25:35.444580Z", "n_labels": 0, "prediction": {"class_probs": {"blast": 0.0939240054875799, "lymphocyte": 0.1356040182990504, "monocyte": 0.16606328196383577, "immature_granulocyte": 0.23611593057674676, "band_neutrophil": 0.09967437126772723, "segmented_neutrophil": 0.09326561037128006, "eosinophil": 0.08619166483826997, "basophil": 0.08916111719550975}, "log_concentration": -3.4117820552256646, "disagreement_prob": 0.027313890331609914, "disagreement_calibrated": true, "class_intervals": {"blast": [2.225073858507201e-308, 1.0], "lymphocyte": [2.225073858507201e-308, 1.0], "monocyte": [7.61707745384921e-279, 1.0], "immature_granulocyte": [1.9274644108062323e-191, 1.0], "band_neutrophil": [2.225073858507201e-308, 1.0], "segmented_neutrophil": [2.225073858507201e-308, 1.0], "eosinophil": [2.225073858507201e-308, 1.0], "basophil": [2.225073858507201e-308, 1.0]}, "release": "01a20481-a456-72f4-b423-ee0c28fc835a", "classes": ["blast", "lymphocyte", "monocyte", "immature_granulocyte", "band_neutrophil", "segmented_neutrophil", "eosinophil", "basophil"], "triage": {"decision": "second_read", "priority": 0.031215874664697045, "expected_gain": 0.8016942547296707, "reason": "unlike the cells that the network was trained on"}, "out_of_distribution": true, "image_sha256": "531a90bdc385e1964f06140edf26664637b6eefb29f9b801ceaa78de8ad383fc"}}','2026-11-22 18:25:35.441385');
INSERT INTO "idempotency_records" VALUES('01a20481a48c73d3812b4df28c939eea','86e5840e06224ee1a142062b5cac0b18','4e9423275d8a954589c4440f3080680e12370cd7dd7aecf82aa9888afc32e3e9',201,'{"id": "01a20481-a700-711a-8af7-cb56e05cfd1a", "external_id": "case without patient", "patient": null, "site": null, "metadata": {}, "width": 96, "height": 96, "partition": "evaluation", "same_image_as": null, "created_at": "2026-11-22T18:25:35.488572Z", "n_labels": 0, "prediction": {"class_probs": {"blast": 0.09752782391261228, "lymphocyte": 0.144424365688791, "monocyte": 0.19554959644494047, "immature_granulocyte": 0.21999538838714702, "band_neutrophil": 0.09233909628519947, "segmented_neutrophil": 0.08818148932603481, "eosinophil": 0.07792955354649547, "basophil": 0.08405268640877941}, "log_concentration": -1.9845088877346342, "disagreement_prob": 0.10314237176232566, "disagreement_calibrated": true, "class_intervals": {"blast": [5.394415107081533e-117, 0.9999832009544998], "lymphocyte": [4.2780536502272564e-78, 0.9999996764813484], "monocyte": [6.902448196059407e-57, 0.999999991995278], "immature_granulocyte": [3.288620046325101e-50, 0.9999999985181807], "band_neutrophil": [1.0150574728280913e-123, 0.9999722474059702], "segmented_neutrophil": [1.1149424091563915e-129, 0.9999579219185344], "eosinophil": [4.3600464962489885e-147, 0.999874967438794], "basophil": [3.52114042731476e-136, 0.9999355047164685]}, "release": "01a20481-a456-72f4-b423-ee0c28fc835a", "classes": ["blast", "lymphocyte", "monocyte", "immature_granulocyte", "band_neutrophil", "segmented_neutrophil", "eosinophil", "basophil"], "triage": {"decision": "single_read", "priority": 0.11787699629980075, "expected_gain": 0.6597308357620454, "reason": "disagreement at most 0.20"}, "out_of_distribution": false, "image_sha256": "542e558130dd373a48df102c9d2434af636ec53d452e2e640bcba69ceb2c1344"}}','2026-11-22 18:25:35.485364');
INSERT INTO "idempotency_records" VALUES('01a20481a492743d828540e9b19caea3','r1','d8788c435e2bac0f5989d26df3113780b84882442fe6b818e1c4e3cfd36c3918',201,'{"id": "01a20481-a719-7791-8049-acec6c97ad68", "case_id": "01a20481-a6d4-76bf-aaf1-40fcc59a5e2c", "image": "/v1/cases/01a20481-a6d4-76bf-aaf1-40fcc59a5e2c/image", "classes": [{"code": "blast", "name": "Blast", "shortcut": "b", "group": "Immature"}, {"code": "lymphocyte", "name": "Lymphocyte", "shortcut": "l", "group": "Mononuclear"}, {"code": "monocyte", "name": "Monocyte", "shortcut": "m", "group": "Mononuclear"}, {"code": "immature_granulocyte", "name": "Immature granulocyte", "shortcut": "i", "group": "Immature"}, {"code": "band_neutrophil", "name": "Band neutrophil", "shortcut": "n", "group": "Granulocytes"}, {"code": "segmented_neutrophil", "name": "Segmented neutrophil", "shortcut": "g", "group": "Granulocytes"}, {"code": "eosinophil", "name": "Eosinophil", "shortcut": "e", "group": "Granulocytes"}, {"code": "basophil", "name": "Basophil", "shortcut": "o", "group": "Granulocytes"}], "state": "leased", "leased_at": "2026-11-22T18:25:35.513558Z", "expires_at": "2026-11-22T18:35:35.512365Z"}','2026-11-22 18:25:35.505710');
INSERT INTO "idempotency_records" VALUES('01a20481a492743d828540e9b19caea3','l1','148470df55963552a6a226b9dfca2a9c548458e78bd2e1c4f9890259d8b2cea6',201,'{"label": {"id": "01a20481-a735-7711-8f7f-506d9f7cf394", "case_id": "01a20481-a6d4-76bf-aaf1-40fcc59a5e2c", "annotator": "anna", "label": "blast", "confidence": null, "note": "Anna Beispiel, Zimmer 4", "blind": true, "round": "planned", "kind": "label", "supersedes": null, "post_reveal": false, "reason": null, "reading_seconds": 0.027504, "created_at": "2026-11-22T18:25:35.541358Z"}, "posterior": {"class_probs": {"blast": 0.9710696562299275, "lymphocyte": 0.0043297371189111155, "monocyte": 0.0053022791287893395, "immature_granulocyte": 0.007539008960116779, "band_neutrophil": 0.0031825297693632458, "segmented_neutrophil": 0.0029779027215247403, "eosinophil": 0.0027520368147793814, "basophil": 0.0028468492565878935}, "log_concentration": 0.03245012471188579, "disagreement_prob": 0.028904119013443117, "disagreement_calibrated": true, "class_intervals": {"blast": [0.5728863301135905, 1.0], "lymphocyte": [2.225073858507201e-308, 0.003324544578970383], "monocyte": [3.0377882865857404e-293, 0.009406466214497308], "immature_granulocyte": [1.8397112491177398e-206, 0.03723350618452242], "band_neutrophil": [2.225073858507201e-308, 0.0004312038936717872], "segmented_neutrophil": [2.225073858507201e-308, 0.0002539263455151317], "eosinophil": [2.225073858507201e-308, 0.00012917594004774286], "basophil": [2.225073858507201e-308, 0.00017380603970785442]}, "release": "01a20481-a456-72f4-b423-ee0c28fc835a", "n_labels": 1, "label_counts": {"blast": 1, "lymphocyte": 0, "monocyte": 0, "immature_granulocyte": 0, "band_neutrophil": 0, "segmented_neutrophil": 0, "eosinophil": 0, "basophil": 0}, "majority_prob": 0.9798594630309787, "further_labels_expected": 1}, "hidden_because": null}','2026-11-22 18:25:35.535472');
INSERT INTO "idempotency_records" VALUES('01a20481a492743d828540e9b19caea3','cbd92ac4ef3549c6871011c63d96002a','d8788c435e2bac0f5989d26df3113780b84882442fe6b818e1c4e3cfd36c3918',201,'{"id": "01a20481-a74f-73ea-b482-3630c4840f5f", "case_id": "01a20481-a566-709c-8814-37a702bee94b", "image": "/v1/cases/01a20481-a566-709c-8814-37a702bee94b/image", "classes": [{"code": "blast", "name": "Blast", "shortcut": "b", "group": "Immature"}, {"code": "lymphocyte", "name": "Lymphocyte", "shortcut": "l", "group": "Mononuclear"}, {"code": "monocyte", "name": "Monocyte", "shortcut": "m", "group": "Mononuclear"}, {"code": "immature_granulocyte", "name": "Immature granulocyte", "shortcut": "i", "group": "Immature"}, {"code": "band_neutrophil", "name": "Band neutrophil", "shortcut": "n", "group": "Granulocytes"}, {"code": "segmented_neutrophil", "name": "Segmented neutrophil", "shortcut": "g", "group": "Granulocytes"}, {"code": "eosinophil", "name": "Eosinophil", "shortcut": "e", "group": "Granulocytes"}, {"code": "basophil", "name": "Basophil", "shortcut": "o", "group": "Granulocytes"}], "state": "leased", "leased_at": "2026-11-22T18:25:35.567780Z", "expires_at": "2026-11-22T18:35:35.567224Z"}','2026-11-22 18:25:35.564210');
INSERT INTO "idempotency_records" VALUES('01a20481a4947729bbc3abe97d40f3c8','495686bb112847c58b8baa41e1f105c3','d8788c435e2bac0f5989d26df3113780b84882442fe6b818e1c4e3cfd36c3918',201,'{"id": "01a20481-a775-73af-a10c-774354d4fbb6", "case_id": "01a20481-a50d-70ac-bd1b-cd2ccbafbf74", "image": "/v1/cases/01a20481-a50d-70ac-bd1b-cd2ccbafbf74/image", "classes": [{"code": "blast", "name": "Blast", "shortcut": "b", "group": "Immature"}, {"code": "lymphocyte", "name": "Lymphocyte", "shortcut": "l", "group": "Mononuclear"}, {"code": "monocyte", "name": "Monocyte", "shortcut": "m", "group": "Mononuclear"}, {"code": "immature_granulocyte", "name": "Immature granulocyte", "shortcut": "i", "group": "Immature"}, {"code": "band_neutrophil", "name": "Band neutrophil", "shortcut": "n", "group": "Granulocytes"}, {"code": "segmented_neutrophil", "name": "Segmented neutrophil", "shortcut": "g", "group": "Granulocytes"}, {"code": "eosinophil", "name": "Eosinophil", "shortcut": "e", "group": "Granulocytes"}, {"code": "basophil", "name": "Basophil", "shortcut": "o", "group": "Granulocytes"}], "state": "leased", "leased_at": "2026-11-22T18:25:35.605342Z", "expires_at": "2026-11-22T18:35:35.604574Z"}','2026-11-22 18:25:35.600602');
CREATE TABLE import_rows (
	job_id CHAR(32) NOT NULL, 
	"row" INTEGER NOT NULL, 
	external_id VARCHAR(200) NOT NULL, 
	status VARCHAR(20) NOT NULL, 
	case_id CHAR(32), 
	detail TEXT NOT NULL, 
	CONSTRAINT pk_import_rows PRIMARY KEY (job_id, "row"), 
	CONSTRAINT ck_import_rows_status CHECK (status IN ('created', 'known', 'failed')), 
	CONSTRAINT fk_import_rows_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id), 
	CONSTRAINT fk_import_rows_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE jobs (
	kind VARCHAR(30) NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	parameters JSON NOT NULL, 
	progress FLOAT NOT NULL, 
	message VARCHAR(500) NOT NULL, 
	attempts INTEGER NOT NULL, 
	cancel_requested BOOLEAN NOT NULL, 
	result JSON, 
	error TEXT, 
	seen_at DATETIME, 
	started_at DATETIME, 
	ended_at DATETIME, 
	created_by CHAR(32), 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT ck_jobs_state CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')), 
	CONSTRAINT fk_jobs_created_by_accounts FOREIGN KEY(created_by) REFERENCES accounts (id)
);
CREATE TABLE labels (
	case_id CHAR(32) NOT NULL, 
	annotator_id CHAR(32) NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	supersedes_id CHAR(32), 
	class_code VARCHAR(100), 
	confidence FLOAT, 
	note TEXT, 
	blind BOOLEAN NOT NULL, 
	round VARCHAR(20) NOT NULL, 
	created_by CHAR(32) NOT NULL, 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, position INTEGER DEFAULT '0' NOT NULL, post_reveal BOOLEAN DEFAULT 0 NOT NULL, reason TEXT, reading_seconds FLOAT, 
	CONSTRAINT pk_labels PRIMARY KEY (id), 
	CONSTRAINT ck_labels_chain CHECK ((kind = 'label') = (supersedes_id IS NULL)), 
	CONSTRAINT ck_labels_class_code CHECK ((kind = 'retraction') = (class_code IS NULL)), 
	CONSTRAINT ck_labels_kind CHECK (kind IN ('label', 'revision', 'retraction')), 
	CONSTRAINT ck_labels_round CHECK (round IN ('planned', 'adjudication')), 
	CONSTRAINT fk_labels_annotator_id_annotators FOREIGN KEY(annotator_id) REFERENCES annotators (id), 
	CONSTRAINT fk_labels_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id), 
	CONSTRAINT fk_labels_created_by_accounts FOREIGN KEY(created_by) REFERENCES accounts (id), 
	CONSTRAINT fk_labels_supersedes_id_labels FOREIGN KEY(supersedes_id) REFERENCES labels (id)
);
INSERT INTO "labels" VALUES('01a20481a566709c881437a702bee94b','01a20481a5aa729bab53758a918bc0b9','label',NULL,'eosinophil',NULL,NULL,1,'planned','01a20481a49674b18d8574d8e5bf8e0c','01a20481a5b27352b0d63c1885ad46fe','2026-11-22 18:25:35.154463',0,0,NULL,NULL);
INSERT INTO "labels" VALUES('01a20481a5dc736bb2066cb5fea38ddf','01a20481a5aa729bab53758a918bc0b9','label',NULL,'segmented_neutrophil',NULL,NULL,1,'planned','01a20481a49674b18d8574d8e5bf8e0c','01a20481a610708d9db3e2e21ad99268','2026-11-22 18:25:35.248253',0,0,NULL,NULL);
INSERT INTO "labels" VALUES('01a20481a5dc736bb2066cb5fea38ddf','01a20481a62370c0884be86e4ad2db76','label',NULL,'band_neutrophil',NULL,NULL,1,'planned','01a20481a49674b18d8574d8e5bf8e0c','01a20481a6257581b6fb7778ea71072a','2026-11-22 18:25:35.269522',0,0,NULL,NULL);
INSERT INTO "labels" VALUES('01a20481a64c732092fa757a8db8cdbf','01a20481a5aa729bab53758a918bc0b9','label',NULL,'monocyte',NULL,NULL,1,'planned','01a20481a49674b18d8574d8e5bf8e0c','01a20481a681702280d296a8b2f036a4','2026-11-22 18:25:35.361959',0,0,NULL,NULL);
INSERT INTO "labels" VALUES('01a20481a64c732092fa757a8db8cdbf','01a20481a62370c0884be86e4ad2db76','label',NULL,'monocyte',NULL,NULL,1,'planned','01a20481a49674b18d8574d8e5bf8e0c','01a20481a69b75a8a0f4394b2bbfbaed','2026-11-22 18:25:35.387419',0,0,NULL,NULL);
INSERT INTO "labels" VALUES('01a20481a64c732092fa757a8db8cdbf','01a20481a6ad76518d1f89f88cfc89ed','label',NULL,'blast',NULL,NULL,1,'planned','01a20481a49674b18d8574d8e5bf8e0c','01a20481a6af7641b6ff1a3f716090fb','2026-11-22 18:25:35.407634',0,0,NULL,NULL);
INSERT INTO "labels" VALUES('01a20481a6d476bfaaf140fcc59a5e2c','01a20481a71375dcaf23e6e6b7a6406a','label',NULL,'blast',NULL,'Anna Beispiel, Zimmer 4',1,'planned','01a20481a492743d828540e9b19caea3','01a20481a73577118f7f506d9f7cf394','2026-11-22 18:25:35.541358',0,0,NULL,0.027504);
CREATE TABLE looks (
	case_id CHAR(32) NOT NULL, 
	policy_version INTEGER NOT NULL, 
	release_id CHAR(32) NOT NULL, 
	selected BOOLEAN NOT NULL, 
	pi FLOAT NOT NULL, 
	reason VARCHAR(200) NOT NULL, 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_looks PRIMARY KEY (id), 
	CONSTRAINT fk_looks_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id), 
	CONSTRAINT fk_looks_policy_version_policies FOREIGN KEY(policy_version) REFERENCES policies (version), 
	CONSTRAINT fk_looks_release_id_releases FOREIGN KEY(release_id) REFERENCES releases (id), 
	CONSTRAINT uq_looks_case_id_policy_version_release_id UNIQUE (case_id, policy_version, release_id)
);
INSERT INTO "looks" VALUES('01a20481a50d70acbd1bcd2ccbafbf74',1,'01a20481a45672f4b423ee0c28fc835a',1,1.0,'disagreement above 0.20','01a20481a518714ba626ba344fc48c0f','2026-11-22 18:25:35.000046');
INSERT INTO "looks" VALUES('01a20481a566709c881437a702bee94b',1,'01a20481a45672f4b423ee0c28fc835a',1,1.0,'disagreement above 0.20','01a20481a5687233ab6a62a6b0858083','2026-11-22 18:25:35.080789');
INSERT INTO "looks" VALUES('01a20481a5dc736bb2066cb5fea38ddf',1,'01a20481a45672f4b423ee0c28fc835a',1,1.0,'disagreement above 0.20','01a20481a5df7167a890ef86f239bd63','2026-11-22 18:25:35.199232');
INSERT INTO "looks" VALUES('01a20481a64c732092fa757a8db8cdbf',1,'01a20481a45672f4b423ee0c28fc835a',0,0.1,'disagreement at most 0.20','01a20481a64f72dfb919cf4c97d7d1c2','2026-11-22 18:25:35.311313');
INSERT INTO "looks" VALUES('01a20481a6d476bfaaf140fcc59a5e2c',1,'01a20481a45672f4b423ee0c28fc835a',1,1.0,'unlike the cells that the network was trained on','01a20481a6d77325a3b7028bd6ce1b48','2026-11-22 18:25:35.447028');
INSERT INTO "looks" VALUES('01a20481a700711a8af7cb56e05cfd1a',1,'01a20481a45672f4b423ee0c28fc835a',0,0.1,'disagreement at most 0.20','01a20481a70375e7888834d261c55674','2026-11-22 18:25:35.491539');
CREATE TABLE network_outputs (
	case_id CHAR(32) NOT NULL, 
	network_sha256 VARCHAR(64) NOT NULL, 
	logits BLOB NOT NULL, 
	features BLOB NOT NULL, 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_network_outputs PRIMARY KEY (id), 
	CONSTRAINT fk_network_outputs_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id), 
	CONSTRAINT uq_network_outputs_case_id_network_sha256 UNIQUE (case_id, network_sha256)
);
INSERT INTO "network_outputs" VALUES('01a20481a64c732092fa757a8db8cdbf','8bff5b2ffc1d4f01d0ead66af6f30b3fc1b8fdb2300e6963cf2bc1285a8244bd',X'5DC85CBE73FD413E31E7FD3E8AC12B3F55AC6EBEE5FD6CBE1836D1BEB210A7BE',X'ABB9733D00000000696D243BE0CA803C7B330B3E8EBB0C3EF4AE4D3D0000000000000000F71A233E2BD8DD3E941BDB3EC8C7B83D06D0DC3DF4A8123D0420B03B8B8F6C3EBC857D3E0CE4543E4E135F3A00000000FCA92A3E8FDABE3B558DC53E0000000000000000000000000000000000000000000000000000000085193D3E000000003918B23EB9376C3ED458A73E83B33B3D7F0C2E3E8416C53E3C5DA33E9C900D3C6058A73B00000000C3B3273DC76CBC3E3F8DCC3D7E99623CF7F6D83C00000000878F713E000000000000000082D2BF3CE7B1333E50DFD83E000000000B73133E5DEDD33E171BC43DE705CD3E6BCFCB3E000000000000000085AF8E3EE2F3553EAA9CDC3E9584003F045A013D423F813E0000000057CF103ED8E3343EEB35933E74AB303D3E5AEA3D746FE73E000000005490953EA5D6DC3E0000000000000000E5F14E3EE02E4E3E5C20A03D00000000B5161C3C7465103C47B3713EF09C3B3E4848A43C0720F63E61485A3E04918739D5EF783E000000000426D83B73A3D73DB975683D556B1C3EBB80773C6E78C33C82D8973ED5E95A3DE9E7223B5C04D13D00000000276EF63CE19A803E2088113EC285E63D16920B3F4719AB3E2CA1463E7A199F3A000000006B59D83EC52F113D4B8BCA3E74789A3E6565143B820A963C000000005B86A13C00000000D543C53BFCD97E3E0000000000000000','01a20481a64c732092fa757b2666e49f','2026-11-22 18:25:35.308991');
INSERT INTO "network_outputs" VALUES('01a20481a6d476bfaaf140fcc59a5e2c','8bff5b2ffc1d4f01d0ead66af6f30b3fc1b8fdb2300e6963cf2bc1285a8244bd',X'E0C269BE4C4E0E3E42E6AE3EC98C313F9AE92CBEF1F670BE2ADEA0BE8D868FBE',X'89D04C3D000000002BD3193DF29F91392D02D63D6CF6F43D1CB5AC3CF5005E3B00000000F799BE3D7208D13E5917AA3E72E6D63DFBEE313EAE4A413AC84C0E3B202E1A3E6457933EEC5E463EF26589399450403A960CD93D8A8EE23B3E4CCE3E0000000067B5D83A00000000000000000000000000000000C559B73A3061293E000000003219943E5CDB843ECA8D8F3EFE46683C3762693E4031B93E019C993E000000004C61E43A00000000AB02103C7235AC3EF52C293DCCEC8C3D3E19633C70CF473C0E37313E1784513DCCCD753BC4F8233C9DD5013EC24BC03E000000008EA01A3ECE4CC03EDF930A3DB7F7873E8BDCAC3E56223D3D0000000026789D3E16DD603EB7D6C33EC2C8F93E8ECF883774F9923E00000000105C9E3D627EF33DA675913E1D29873A7EFB543E022AB63E000000003582543EE354A03E00000000F52C3B3CAEB56B3E39F5743E5552B83D2AE9843C845B123DBCF98D3A8F88853EA9C25C3E3EF3453C1C2CD33E4E21353ECC66DF3B43DC583E00000000742C5A3D378B2D3D657BD13CCA6A313E00000000695A8D3DCB16853EB75F7C3C1F374A3D3CD4D43C009C283870357E3C42DB9C3E6ABD9C3D14E4A33CB2BBFF3E3A59AC3EF1EE583E67B4C03A000000001AE8D63ECCA2A23A2447A83E5948A93E000000006541483B0000000000000000ED3AA73A8068563902E58A3E0000000000000000','01a20481a6d476bfaaf140fdf9f8eb41','2026-11-22 18:25:35.444894');
INSERT INTO "network_outputs" VALUES('01a20481a700711a8af7cb56e05cfd1a','8bff5b2ffc1d4f01d0ead66af6f30b3fc1b8fdb2300e6963cf2bc1285a8244bd',X'64CC36BE203E5B3EBF64043F668C223FD3C76EBE79FA8EBEE641CEBECD87A7BE',X'B4F5973D0000000067897F3BA7F8B13C8EAB1B3E127D3A3ED322913D0000000000000000B1702D3EFEBCD33E0560E83E2B50AB3DB73CE73D5946713D3E6F1D3CBB18703EE4A87E3E8B864B3E00000000000000006ED7473E3C768C3AA59EB73E000000000000000000000000000000000000000000000000000000007E14663E0000000087E3AD3E39736F3E995D8D3E573B7C3D77DA343EEC42B83E5E418D3EA0AF823C40B0AB3A00000000C704643DCED69F3ECAC50B3E542B953C939E923C000000006853633E0000000000000000C44E013D52BC173E4CFBDE3E00000000AEB2F93D38DACC3E64D4043EE988D13E92CCC53E0000000000000000EC64893EA4CD373EC714C33E7439F23EFBC8493D4E1F6C3E00000000CD7E163EFBB3623E40137D3E64B7763D6580E23D0F4AE23E00000000E9A79E3EB702CA3E0000000000000000400E563E2A2F3D3EE5EDD63D0000000027B95E3C4BB7D73A0B0C6F3E99DE543E8E55833C0BD8F93E25D0743E12D8B339E0A38D3E000000001EDFF93B8C3C103E4E23703D2ED7093E3F4EA63C79FDC33C5590903ED9557F3D591F833AC453053E00000000B0789A3C8250723E4476323EFD2F1B3EF6200A3FD52FA93E6DDF383E4CC7813A00000000792CD43E844D533D82C4D13E67959A3E8E8F7C3BA024953C000000009542F93C000000006499173CF2327F3E0000000000000000','01a20481a700711a8af7cb5728b90677','2026-11-22 18:25:35.488898');
CREATE TABLE policies (
	version INTEGER NOT NULL, 
	rule VARCHAR(20) NOT NULL, 
	threshold FLOAT, 
	capacity_per_day INTEGER, 
	audit_rate FLOAT NOT NULL, 
	target_error FLOAT NOT NULL, 
	adjudicate_below FLOAT, 
	max_labels INTEGER NOT NULL, 
	reveal VARCHAR(20) NOT NULL, 
	lease_seconds INTEGER NOT NULL, 
	due_days INTEGER NOT NULL, 
	reason TEXT NOT NULL, 
	created_by CHAR(32), 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_policies PRIMARY KEY (id), 
	CONSTRAINT ck_policies_reveal CHECK (reveal IN ('after_commit', 'after_case_closed', 'never')), 
	CONSTRAINT ck_policies_rule CHECK (rule IN ('disagreement', 'expected_gain', 'capacity')), 
	CONSTRAINT ck_policies_audit_rate CHECK (audit_rate > 0 AND audit_rate <= 1), 
	CONSTRAINT fk_policies_created_by_accounts FOREIGN KEY(created_by) REFERENCES accounts (id), 
	CONSTRAINT uq_policies_version UNIQUE (version)
);
INSERT INTO "policies" VALUES(1,'disagreement',0.2,NULL,0.1,0.02,0.9,5,'after_commit',600,7,'the first policy, made with the database',NULL,'ab6f7cb09e6e4fe2bc9ed8ce68ad81f5','2026-11-22 18:25:34.742978');
CREATE TABLE predictions (
	case_id CHAR(32) NOT NULL, 
	release_id CHAR(32) NOT NULL, 
	class_probs JSON NOT NULL, 
	log_concentration FLOAT, 
	disagreement_prob FLOAT NOT NULL, 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, members BLOB, out_of_distribution BOOLEAN DEFAULT 0 NOT NULL, feature_distance FLOAT, 
	CONSTRAINT pk_predictions PRIMARY KEY (id), 
	CONSTRAINT fk_predictions_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id), 
	CONSTRAINT fk_predictions_release_id_releases FOREIGN KEY(release_id) REFERENCES releases (id), 
	CONSTRAINT uq_predictions_case_id_release_id UNIQUE (case_id, release_id)
);
INSERT INTO "predictions" VALUES('01a20481a50d70acbd1bcd2ccbafbf74','01a20481a45672f4b423ee0c28fc835a','[0.0902533652783197, 0.1362657383788896, 0.18234354402925645, 0.2390593787512224, 0.09309593441233041, 0.09781781526169457, 0.0770723232771875, 0.08409190061109936]',1.09590313521437110466e-01,4.49129894824380315743e-01,'01a20481a50e76409b7c41cc7d8f0939','2026-11-22 18:25:34.990589',NULL,0,4.65498188337130580638e-01);
INSERT INTO "predictions" VALUES('01a20481a566709c881437a702bee94b','01a20481a45672f4b423ee0c28fc835a','[0.095503989415756, 0.14048350294477696, 0.2004608540433954, 0.2262102822496837, 0.08911793639135125, 0.08856737707225205, 0.07654714437146956, 0.08310891351131511]',-3.39133633470630968531e-01,3.54130729653435116777e-01,'01a20481a566709c881437a94ecb05a9','2026-11-22 18:25:35.078699',NULL,0,4.85884884145793061183e-01);
INSERT INTO "predictions" VALUES('01a20481a5dc736bb2066cb5fea38ddf','01a20481a45672f4b423ee0c28fc835a','[0.09030914552868181, 0.13647916289395445, 0.1813950650220859, 0.23828651267361345, 0.09361211572213483, 0.09811964615039512, 0.07739594193932271, 0.08440241006981156]',-2.16295538029029899007e-01,3.80120531134302386266e-01,'01a20481a5dd705896574abc1f6e95de','2026-11-22 18:25:35.197210',NULL,0,4.41094853978991618959e-01);
INSERT INTO "predictions" VALUES('01a20481a64c732092fa757a8db8cdbf','01a20481a45672f4b423ee0c28fc835a','[0.09389838109367481, 0.14078932373728456, 0.19127758469939493, 0.2278626744171381, 0.09227211203454605, 0.0924237462616188, 0.07741692245109859, 0.0840592553052442]',-1.24587715579736624249e+00,1.90513999783643972474e-01,'01a20481a64d735290a2878ac317efeb','2026-11-22 18:25:35.309145',NULL,0,3.89091702431198560585e-01);
INSERT INTO "predictions" VALUES('01a20481a6d476bfaaf140fcc59a5e2c','01a20481a45672f4b423ee0c28fc835a','[0.0939240054875799, 0.1356040182990504, 0.16606328196383577, 0.23611593057674676, 0.09967437126772723, 0.09326561037128006, 0.08619166483826997, 0.08916111719550975]',-3.4117820552256645783e+00,2.73138903316099135309e-02,'01a20481a6d572d9a7e798c134bedaf0','2026-11-22 18:25:35.445032',NULL,1,7.73750965633325682446e-01);
INSERT INTO "predictions" VALUES('01a20481a700711a8af7cb56e05cfd1a','01a20481a45672f4b423ee0c28fc835a','[0.09752782391261228, 0.144424365688791, 0.19554959644494047, 0.21999538838714702, 0.09233909628519947, 0.08818148932603481, 0.07792955354649547, 0.08405268640877941]',-1.98450888773463418601e+00,1.03142371762325657513e-01,'01a20481a70176cc9ca711cfe5d77033','2026-11-22 18:25:35.489038',NULL,0,0.621716539982272);
CREATE TABLE read_requests (
	case_id CHAR(32) NOT NULL, 
	ordinal INTEGER NOT NULL, 
	round VARCHAR(20) NOT NULL, 
	arm VARCHAR(20) NOT NULL, 
	u FLOAT NOT NULL, 
	pi FLOAT NOT NULL, 
	policy_version INTEGER NOT NULL, 
	release_id CHAR(32), 
	due_at DATETIME NOT NULL, 
	due_on VARCHAR(10) NOT NULL, 
	shuffle INTEGER NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	lease_expires_at DATETIME, 
	closed_at DATETIME, 
	label_id CHAR(32), 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_read_requests PRIMARY KEY (id), 
	CONSTRAINT ck_read_requests_arm CHECK (arm IN ('first', 'triage', 'audit', 'adjudication')), 
	CONSTRAINT ck_read_requests_round CHECK (round IN ('planned', 'adjudication')), 
	CONSTRAINT ck_read_requests_state CHECK (state IN ('open', 'leased', 'answered', 'closed')), 
	CONSTRAINT fk_read_requests_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id), 
	CONSTRAINT fk_read_requests_label_id_labels FOREIGN KEY(label_id) REFERENCES labels (id), 
	CONSTRAINT fk_read_requests_policy_version_policies FOREIGN KEY(policy_version) REFERENCES policies (version), 
	CONSTRAINT fk_read_requests_release_id_releases FOREIGN KEY(release_id) REFERENCES releases (id), 
	CONSTRAINT uq_read_requests_case_id_ordinal UNIQUE (case_id, ordinal), 
	CONSTRAINT uq_read_requests_label_id UNIQUE (label_id)
);
INSERT INTO "read_requests" VALUES('01a20481a50d70acbd1bcd2ccbafbf74',1,'planned','first',8.09541480247547573512e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.003917','2026-11-29',463880280,'closed',NULL,'2026-11-22 18:25:35.620376',NULL,'01a20481a51d715f844a64dd9b710298','2026-11-22 18:25:35.005033');
INSERT INTO "read_requests" VALUES('01a20481a50d70acbd1bcd2ccbafbf74',2,'planned','triage',8.09541480247547573512e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.005806','2026-11-29',2106521557,'closed',NULL,'2026-11-22 18:25:35.620376',NULL,'01a20481a51e7375aa377188c1757557','2026-11-22 18:25:35.006032');
INSERT INTO "read_requests" VALUES('01a20481a566709c881437a702bee94b',1,'planned','first',6.9616419589687916769e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.081743','2026-11-29',94643924,'answered',NULL,'2026-11-22 18:25:35.154463','01a20481a5b27352b0d63c1885ad46fe','01a20481a56971eda3148ea03f82e130','2026-11-22 18:25:35.081943');
INSERT INTO "read_requests" VALUES('01a20481a566709c881437a702bee94b',2,'planned','triage',6.9616419589687916769e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.082308','2026-11-29',1309025993,'closed',NULL,'2026-11-22 18:25:35.620376',NULL,'01a20481a56a7126b11e5332655922f7','2026-11-22 18:25:35.082446');
INSERT INTO "read_requests" VALUES('01a20481a5dc736bb2066cb5fea38ddf',1,'planned','first',3.02795497479238950866e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.200247','2026-11-29',995710388,'answered',NULL,'2026-11-22 18:25:35.248253','01a20481a610708d9db3e2e21ad99268','01a20481a5e075348c8534c6ee17acf5','2026-11-22 18:25:35.200450');
INSERT INTO "read_requests" VALUES('01a20481a5dc736bb2066cb5fea38ddf',2,'planned','triage',3.02795497479238950866e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.200868','2026-11-29',787715149,'answered',NULL,'2026-11-22 18:25:35.269522','01a20481a6257581b6fb7778ea71072a','01a20481a5e1751d8bef265a1c10bf20','2026-11-22 18:25:35.201010');
INSERT INTO "read_requests" VALUES('01a20481a5dc736bb2066cb5fea38ddf',3,'adjudication','adjudication',3.02795497479238950866e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.274395','2026-11-29',1555255343,'closed',NULL,'2026-11-22 18:25:35.620376',NULL,'01a20481a62a70d1b14dd689e8797d79','2026-11-22 18:25:35.274688');
INSERT INTO "read_requests" VALUES('01a20481a64c732092fa757a8db8cdbf',1,'planned','first',6.82660812715615517021e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.312267','2026-11-29',49398950,'answered',NULL,'2026-11-22 18:25:35.361959','01a20481a681702280d296a8b2f036a4','01a20481a65074d4894b739fe99a1e14','2026-11-22 18:25:35.312480');
INSERT INTO "read_requests" VALUES('01a20481a64c732092fa757a8db8cdbf',2,'adjudication','adjudication',6.82660812715615517021e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.412348','2026-11-29',815292402,'open',NULL,NULL,NULL,'01a20481a6b47182a9acd4851f0fe6b0','2026-11-22 18:25:35.412653');
INSERT INTO "read_requests" VALUES('01a20481a6d476bfaaf140fcc59a5e2c',1,'planned','first',4.37344918418455963493e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.447955','2026-11-29',996367017,'open',NULL,NULL,NULL,'01a20481a6d87581bcbeacd84563ad86','2026-11-22 18:25:35.448150');
INSERT INTO "read_requests" VALUES('01a20481a6d476bfaaf140fcc59a5e2c',2,'planned','triage',4.37344918418455963493e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.448510','2026-11-29',1118928637,'answered',NULL,'2026-11-22 18:25:35.541358','01a20481a73577118f7f506d9f7cf394','01a20481a6d87581bcbeacd9ae977b4f','2026-11-22 18:25:35.448647');
INSERT INTO "read_requests" VALUES('01a20481a700711a8af7cb56e05cfd1a',1,'planned','first',5.0434724812515963066e-01,1.0,1,'01a20481a45672f4b423ee0c28fc835a','2026-11-29 18:25:35.492108','2026-11-29',15252893,'open',NULL,NULL,NULL,'01a20481a70477e68365f96bc603afd4','2026-11-22 18:25:35.492313');
CREATE TABLE reads (
	request_id CHAR(32) NOT NULL, 
	case_id CHAR(32) NOT NULL, 
	annotator_id CHAR(32) NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	expires_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	decline_reason VARCHAR(20), 
	note TEXT, 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_reads PRIMARY KEY (id), 
	CONSTRAINT ck_reads_state CHECK (state IN ('leased', 'committed', 'declined', 'released', 'expired')), 
	CONSTRAINT fk_reads_annotator_id_annotators FOREIGN KEY(annotator_id) REFERENCES annotators (id), 
	CONSTRAINT fk_reads_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id), 
	CONSTRAINT fk_reads_request_id_read_requests FOREIGN KEY(request_id) REFERENCES read_requests (id)
);
INSERT INTO "reads" VALUES('01a20481a6d87581bcbeacd9ae977b4f','01a20481a6d476bfaaf140fcc59a5e2c','01a20481a71375dcaf23e6e6b7a6406a','committed','2026-11-22 18:35:35.512365','2026-11-22 18:25:35.541358',NULL,NULL,'01a20481a71977918049acec6c97ad68','2026-11-22 18:25:35.513558');
INSERT INTO "reads" VALUES('01a20481a56a7126b11e5332655922f7','01a20481a566709c881437a702bee94b','01a20481a71375dcaf23e6e6b7a6406a','leased','2026-11-22 18:35:35.567224',NULL,NULL,NULL,'01a20481a74f73eab4823630c4840f5f','2026-11-22 18:25:35.567780');
INSERT INTO "reads" VALUES('01a20481a51d715f844a64dd9b710298','01a20481a50d70acbd1bcd2ccbafbf74','01a20481a77275a4aa848c3d69a11788','leased','2026-11-22 18:35:35.604574',NULL,NULL,NULL,'01a20481a77573afa10c774354d4fbb6','2026-11-22 18:25:35.605342');
CREATE TABLE releases (
	name VARCHAR(200) NOT NULL, 
	card_sha256 VARCHAR(64) NOT NULL, 
	card JSON NOT NULL, 
	id CHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_releases PRIMARY KEY (id), 
	CONSTRAINT uq_releases_card_sha256 UNIQUE (card_sha256)
);
INSERT INTO "releases" VALUES('small cells','b58804b318b24d3837a2c11cc27bee48da5d61055eae8a27752f6996b7248385','{"calibration": {"concentration": {"candidates": {"constant": 1.1951408007112276, "constant, penalty 0.0005": 1.1978900749996924, "constant, penalty 5e-05": 1.198361865197954, "ridge 0.001": 1.411227933387711, "ridge 0.01": 1.3265576677503534, "ridge 0.1": 1.1689640772258396, "ridge 0.1, penalty 0.0005": 1.1621312497109235, "ridge 0.1, penalty 5e-05": 1.16202217264345}, "chosen": "ridge 0.1, penalty 5e-05", "cv_after": 1.16202217264345, "cv_before": 1.2659426192827217}, "joint": {"cv_after": 1.1758634075070384, "cv_before": 1.162026399963372, "kept": false}, "n_cv": 10, "n_fit": 30, "temperature": {"candidates": {"temperature": 2.0792648654629295}, "chosen": "identity", "cv_after": 2.046286207346625, "cv_before": 2.046286207346625}}, "classes": [{"code": "blast", "group": "Immature", "name": "Blast", "shortcut": "b"}, {"code": "lymphocyte", "group": "Mononuclear", "name": "Lymphocyte", "shortcut": "l"}, {"code": "monocyte", "group": "Mononuclear", "name": "Monocyte", "shortcut": "m"}, {"code": "immature_granulocyte", "group": "Immature", "name": "Immature granulocyte", "shortcut": "i"}, {"code": "band_neutrophil", "group": "Granulocytes", "name": "Band neutrophil", "shortcut": "n"}, {"code": "segmented_neutrophil", "group": "Granulocytes", "name": "Segmented neutrophil", "shortcut": "g"}, {"code": "eosinophil", "group": "Granulocytes", "name": "Eosinophil", "shortcut": "e"}, {"code": "basophil", "group": "Granulocytes", "name": "Basophil", "shortcut": "o"}], "data": {"name": "cells", "partitions": {"calibration": 40, "test": 60, "train": 170, "valid": 30}, "source": "300 simulated stained white cells with simulated annotators (seed 0)", "split_by": "patient"}, "disagreement_calibrated": true, "files": {"README.md": "410570c6d4b328b7f86b30595dd8adf0e222ac654e2dbfced1598206b76b118f", "calibration.json": "2ac79f5f94123ede2db9fa00346a27f937e53570336b284813e09cdf4edc9a03", "feature_distance.safetensors": "9521a5cc80ebd7fdc6195688c0242df470eb5b61785b80538c817962becc2d61", "fused.onnx": "2cca9c2443851d8cca02eb50a3e2fd24da935ec6de706f0aad15663b73a38ffe", "network.onnx": "8bff5b2ffc1d4f01d0ead66af6f30b3fc1b8fdb2300e6963cf2bc1285a8244bd"}, "held_out": {"raw": {"CE": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.2170010154097497, "horvitz_thompson": null, "largest_weight": null, "low": 0.0, "n": 60, "se": 0.032771042885803896, "singleton_mass": 0.0, "value": 0.1485380614859708}, "CE_D": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.6858266349477239, "horvitz_thompson": null, "largest_weight": null, "low": 0.4955907688232733, "n": 60, "se": 0.03653191295174116, "singleton_mass": 0.0, "value": 0.5983178015680971}, "EL": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.7347405959294724, "horvitz_thompson": null, "largest_weight": null, "low": 0.5319999858526336, "n": 60, "se": 0.039434770616173134, "singleton_mass": 0.0, "value": 0.633370290891053}, "L": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.9058402125462637, "horvitz_thompson": null, "largest_weight": null, "low": 0.8675670359025092, "n": 60, "se": 0.007444457926444583, "singleton_mass": 0.0, "value": 0.8867036242243864}, "L_D": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.6173791476464087, "horvitz_thompson": null, "largest_weight": null, "low": 0.47986027338991316, "n": 60, "se": 0.02674858904510513, "singleton_mass": 0.0, "value": 0.5486197105181609}, "accuracy": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.19386437715273644, "horvitz_thompson": null, "largest_weight": null, "low": 0.006135622847263572, "n": 60, "se": 0.036514837167011066, "singleton_mass": 0.0, "value": 0.1}}, "temperature": {"CE": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.2170010154097497, "horvitz_thompson": null, "largest_weight": null, "low": 0.0, "n": 60, "se": 0.032771042885803896, "singleton_mass": 0.0, "value": 0.1485380614859708}, "CE_D": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.6858266349477239, "horvitz_thompson": null, "largest_weight": null, "low": 0.4955907688232733, "n": 60, "se": 0.03653191295174116, "singleton_mass": 0.0, "value": 0.5983178015680971}, "EL": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.7347405959294724, "horvitz_thompson": null, "largest_weight": null, "low": 0.5319999858526336, "n": 60, "se": 0.039434770616173134, "singleton_mass": 0.0, "value": 0.633370290891053}, "L": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.9058402125462637, "horvitz_thompson": null, "largest_weight": null, "low": 0.8675670359025092, "n": 60, "se": 0.007444457926444583, "singleton_mass": 0.0, "value": 0.8867036242243864}, "L_D": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.6173791476464087, "horvitz_thompson": null, "largest_weight": null, "low": 0.47986027338991316, "n": 60, "se": 0.02674858904510513, "singleton_mass": 0.0, "value": 0.5486197105181609}, "accuracy": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.19386437715273644, "horvitz_thompson": null, "largest_weight": null, "low": 0.006135622847263572, "n": 60, "se": 0.036514837167011066, "singleton_mass": 0.0, "value": 0.1}}, "with concentration head": {"CE": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.2170010154097497, "horvitz_thompson": null, "largest_weight": null, "low": 0.0, "n": 60, "se": 0.032771042885803896, "singleton_mass": 0.0, "value": 0.1485380614859708}, "CE_D": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.21046974470467475, "horvitz_thompson": null, "largest_weight": null, "low": 0.0, "n": 60, "se": 0.0863966441935101, "singleton_mass": 0.03333333333333333, "value": 0.08388637363954486}, "EL": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.7347405959294724, "horvitz_thompson": null, "largest_weight": null, "low": 0.5319999858526336, "n": 60, "se": 0.039434770616173134, "singleton_mass": 0.0, "value": 0.633370290891053}, "L": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.9058402125462637, "horvitz_thompson": null, "largest_weight": null, "low": 0.8675670359025092, "n": 60, "se": 0.007444457926444583, "singleton_mass": 0.0, "value": 0.8867036242243864}, "L_D": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.27176683569430626, "horvitz_thompson": null, "largest_weight": null, "low": 0.14859071814946223, "n": 60, "se": 0.023958801045980582, "singleton_mass": 0.0, "value": 0.21017877692188425}, "accuracy": {"clipped": false, "dropped": 0, "ess": 60.0, "high": 0.19386437715273644, "horvitz_thompson": null, "largest_weight": null, "low": 0.006135622847263572, "n": 60, "se": 0.036514837167011066, "singleton_mass": 0.0, "value": 0.1}}}, "licence": "Apache-2.0, simulated by this project", "limits_of_use": ["For research. Not a medical device: not to be used for diagnosis or treatment.", "Valid for images like those it was trained on: same stain, microscope, camera, magnification and framing.", "Cells of classes that are not listed get one of the listed classes all the same."], "mc_dropout": null, "n_held_out": 60, "name": "small cells", "network": "compact", "orientation": "any", "parent": null, "parity": {"max_probability_difference": 4.422252097846524e-08, "max_relative_logit_difference": 3.1652848520025145e-07, "n": 130}, "preprocessing": {"channels": 3, "crop": null, "mean": [0.8566, 0.7656, 0.8377], "size": 48, "std": [0.1365, 0.1787, 0.0983], "version": 1}, "reference": {"distance_sq_mean": 0.19461176000043293, "distance_sq_sd": 0.11558224206809925, "label_share": [0.08333333333333333, 0.17333333333333334, 0.15666666666666668, 0.09666666666666666, 0.11, 0.19666666666666666, 0.08333333333333333, 0.1], "n_distance": 60, "n_labels": 300, "n_stain": 130, "stain_mean": [0.0714806497919348, 0.13316761999803362, 0.0798528246028646], "stain_sd": [0.00916502195499027, 0.015693502049168726, 0.011315650113441132]}, "seed": 0, "version": 1, "versions": {"numpy": "2.4.6", "python": "3.11.7", "torch": "2.13.0+cpu"}}','01a20481a45672f4b423ee0c28fc835a','2026-11-22 18:25:34.813062');
CREATE INDEX ix_audit_events_object ON audit_events (object);
CREATE INDEX ix_api_keys_account_id ON api_keys (account_id);
CREATE INDEX ix_browser_sessions_account_id ON browser_sessions (account_id);
CREATE INDEX ix_cases_image_sha256 ON cases (image_sha256);
CREATE INDEX ix_labels_annotator_id ON labels (annotator_id);
CREATE INDEX ix_labels_case_id ON labels (case_id);
CREATE UNIQUE INDEX uq_labels_first_of_annotator ON labels (case_id, annotator_id) WHERE supersedes_id IS NULL;
CREATE UNIQUE INDEX uq_labels_supersedes_id ON labels (supersedes_id);
CREATE INDEX ix_predictions_disagreement_prob ON predictions (disagreement_prob);
CREATE INDEX ix_predictions_release_id ON predictions (release_id);
CREATE TRIGGER labels_no_update BEFORE UPDATE ON labels BEGIN SELECT RAISE(ABORT, 'labels is append-only'); END;
CREATE TRIGGER labels_no_delete BEFORE DELETE ON labels BEGIN SELECT RAISE(ABORT, 'labels is append-only'); END;
CREATE TRIGGER predictions_no_update BEFORE UPDATE ON predictions BEGIN SELECT RAISE(ABORT, 'predictions is append-only'); END;
CREATE TRIGGER predictions_no_delete BEFORE DELETE ON predictions BEGIN SELECT RAISE(ABORT, 'predictions is append-only'); END;
CREATE TRIGGER audit_events_no_update BEFORE UPDATE ON audit_events BEGIN SELECT RAISE(ABORT, 'audit_events is append-only'); END;
CREATE TRIGGER audit_events_no_delete BEFORE DELETE ON audit_events BEGIN SELECT RAISE(ABORT, 'audit_events is append-only'); END;
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE INDEX ix_network_outputs_network_sha256 ON network_outputs (network_sha256);
CREATE INDEX ix_read_requests_lease_expires_at ON read_requests (lease_expires_at);
CREATE INDEX ix_read_requests_queue ON read_requests (state, due_on, shuffle);
CREATE INDEX ix_reads_annotator_id_state ON reads (annotator_id, state);
CREATE INDEX ix_reads_case_id ON reads (case_id);
CREATE INDEX ix_reads_request_id ON reads (request_id);
CREATE UNIQUE INDEX uq_reads_lease ON reads (request_id) WHERE state = 'leased';
CREATE UNIQUE INDEX uq_reads_once ON reads (case_id, annotator_id) WHERE state IN ('leased', 'committed');
CREATE UNIQUE INDEX ix_accounts_oidc_subject ON accounts (oidc_subject);
CREATE INDEX ix_cases_partition_id ON cases (partition, id);
CREATE INDEX ix_cases_patient_id ON cases (patient, id);
CREATE INDEX ix_cases_site_id ON cases (site, id);
CREATE INDEX ix_cases_worklist ON cases (waiting, need, id);
CREATE TRIGGER policies_no_update BEFORE UPDATE ON policies BEGIN SELECT RAISE(ABORT, 'policies is append-only'); END;
CREATE TRIGGER policies_no_delete BEFORE DELETE ON policies BEGIN SELECT RAISE(ABORT, 'policies is append-only'); END;
CREATE TRIGGER looks_no_update BEFORE UPDATE ON looks BEGIN SELECT RAISE(ABORT, 'looks is append-only'); END;
CREATE TRIGGER looks_no_delete BEFORE DELETE ON looks BEGIN SELECT RAISE(ABORT, 'looks is append-only'); END;
CREATE TRIGGER exposures_no_update BEFORE UPDATE ON exposures BEGIN SELECT RAISE(ABORT, 'exposures is append-only'); END;
CREATE TRIGGER exposures_no_delete BEFORE DELETE ON exposures BEGIN SELECT RAISE(ABORT, 'exposures is append-only'); END;
CREATE TRIGGER case_changes_no_update BEFORE UPDATE ON case_changes BEGIN SELECT RAISE(ABORT, 'case_changes is append-only'); END;
CREATE TRIGGER case_changes_no_delete BEFORE DELETE ON case_changes BEGIN SELECT RAISE(ABORT, 'case_changes is append-only'); END;
COMMIT;
