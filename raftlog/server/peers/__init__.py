"""Links to the other brokers, and the registry of brokers that connect to this one."""
