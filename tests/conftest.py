"""What every test can use."""

pytest_plugins = ["pytester", "tests.plugin", "tests.brokers"]
