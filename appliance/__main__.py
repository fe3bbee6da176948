"""`python -m appliance`: the command line."""

from appliance.cli import main

if __name__ == "__main__":
    main()
