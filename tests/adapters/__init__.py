KEYS = {"sim": "native", "sim.threads": 1, "device": "cpu"}
