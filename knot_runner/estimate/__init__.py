"""What a sweep will take, before it is started: its jobs as pieces of work, timed or looked up in finished runs."""
