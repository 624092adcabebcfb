# An agent for a trial: nomad-lite agent -config agent.hcl -data-dir DIR -plugin-dir DIR
ports {
  http = 0
}

plugin "raw_exec" {
  config {
    enabled = true
  }
}

plugin "warmup" {
  config {
    default_timeout = "6s"
  }
}
