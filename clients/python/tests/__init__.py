import logging

# Failures are part of the tests, and what is logged of them is not looked at.
logging.disable(logging.CRITICAL)
