variable "seconds" {
  type    = number
  default = 0
}

job "example" {
  type = "batch"

  group "pump" {
    task "pump" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          env | grep SENSORBUS
          echo "attic: $(cat "$SENSORBUS_THERMO_ATTIC/value")"
          echo 5 >"$SENSORBUS_RELAY_PUMP/value" && echo "relay is writable"
          echo 5 >"$SENSORBUS_THERMO_ATTIC/value" || echo "thermo is read-only"
          sleep ${var.seconds}
          echo done
        EOT
        ]
      }

      resources {
        device "acme/thermo" {
          constraint {
            attribute = "${device.attr.buffer}"
            operator  = ">="
            value     = "0.0625 MiB"
          }
          affinity {
            attribute = "${device.attr.power}"
            operator  = "<"
            value     = "0.5 W"
          }
        }

        device "acme/relay/R7" {
          constraint {
            attribute = "${device.attr.switches}"
            operator  = ">="
            value     = "1500 W"
          }
        }
      }
    }
  }
}
