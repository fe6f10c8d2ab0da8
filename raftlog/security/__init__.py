"""Security decisions: principals, credentials, authentication mechanisms. Pure."""
