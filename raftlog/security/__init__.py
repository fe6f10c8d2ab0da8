"""Security decisions: principals, credentials, mechanisms of authentication. Pure."""
