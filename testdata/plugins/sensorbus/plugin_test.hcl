# The body of the plugin block with which `nomad-lite plugin test ./sensorbus` configures the
# plugin; ./mkbus.sh /tmp/sensorbus makes the directory.
config = {
  dir          = "/tmp/sensorbus"
  vendor       = "acme"
  thermo_tasks = 2
  model        = { T100 = { attributes = { power = "20 mW" } } }
}
