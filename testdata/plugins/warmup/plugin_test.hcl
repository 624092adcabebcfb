# What `nomad-lite plugin test ./warmup` attaches the hook with. It must be
# one with which the hook lets the tasks of the suite run.
attachment = { exec = { command = ["/bin/true"] }, successes = 2, interval = "50ms" }
config     = { default_timeout = "20s" }
