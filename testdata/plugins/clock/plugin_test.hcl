# What `nomad-lite plugin test ./clock` makes the driver run.

# A task that runs until it is stopped.
runs = {
  every = { tick = { seconds = 1 } }
}

# One that ends by itself, and well.
ends = {
  every = { tick = { seconds = 1 } }
  lines = 1
}

# One that ends by itself, and not well.
fails = {
  every     = { tick = { seconds = 1 } }
  lines     = 1
  exit_code = 3
}

# The body of the plugin block.
config = { max_tasks = 200, timezone = "UTC" }
