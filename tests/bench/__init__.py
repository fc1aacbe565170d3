"""``make bench``: how fast, as ratios to a ceiling measured in the same run. Never a test: these machines are shared."""
