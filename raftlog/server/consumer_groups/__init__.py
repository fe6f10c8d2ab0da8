"""The broker's side of consumer groups: whose coordinator it is, and what it answers as one."""
