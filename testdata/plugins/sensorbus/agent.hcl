# The configuration of an agent that uses the plugin; ./mkbus.sh makes the directory.
plugin "sensorbus" {
  config {
    dir          = "/tmp/sensorbus"
    vendor       = "acme"
    thermo_tasks = 2

    model "T100" {
      attributes {
        power  = "20 mW"
        buffer = "64 KiB"
      }
    }
    model "T200" {
      attributes {
        power  = "1 W"
        buffer = "1 MiB"
      }
    }
    model "R7" {
      attributes {
        switches = "2 kW"
      }
    }
  }
}
