-- compatible since: 1
-- Failed logins say what was wrong. Until now, the account of a wrong two-factor code began with a space.
ALTER TABLE login_failures ADD COLUMN kind TEXT COLLATE "C" NOT NULL DEFAULT 'login';
