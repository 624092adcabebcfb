# A key-value store. Its data is in a volume of Docker, which outlives the allocation: it
# survives restarts and upgrades.

variable "version" {
  type    = string
  default = "7.2"
}

job "kvstore" {
  group "kvstore" {
    # A new version must not open the data before the old one has closed it.
    count = 1

    network {
      port "db" {
        to = 6379
      }
    }

    service {
      name     = "kvstore"
      port     = "db"
      provider = "nomad"

      check {
        name     = "alive"
        type     = "tcp"
        interval = "2s"
        timeout  = "1s"
      }
    }

    restart {
      attempts = 10
      interval = "5m"
      delay    = "1s"
      mode     = "delay"
    }

    task "kvstore" {
      driver       = "docker"
      kill_timeout = "20s"

      config {
        image = "kvstore:${var.version}"
        args  = ["-dir", "/data"]
        ports = ["db"]

        mount {
          type   = "volume"
          source = "kvstore-data"
          target = "/data"
        }
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
