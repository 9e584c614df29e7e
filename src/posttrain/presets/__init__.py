"""Other libraries' formulas as options of our algorithms: one TOML file per library and version."""
