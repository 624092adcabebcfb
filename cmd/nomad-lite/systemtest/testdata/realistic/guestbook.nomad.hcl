# The guest book. A task prepares its data before the first start, and another one says
# goodbye when the job is stopped.

job "guestbook" {
  group "guestbook" {
    network {
      port "http" {
        to = 6379
      }
    }

    service {
      name     = "guestbook"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/schema"
        interval = "2s"
        timeout  = "1s"
      }
    }

    task "migrate" {
      driver = "docker"

      lifecycle {
        hook    = "prestart"
        sidecar = false
      }

      config {
        image   = "busybox:1.36"
        command = "/bin/sh"
        args    = ["-ec", "[ -e /data/schema ] || printf v3 >/data/schema; echo schema: $(cat /data/schema)"]

        mount {
          type   = "volume"
          source = "guestbook-data"
          target = "/data"
        }
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "guestbook" {
      driver = "docker"

      config {
        image = "kvstore:7.2"
        ports = ["http"]

        mount {
          type   = "volume"
          source = "guestbook-data"
          target = "/data"
        }
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }

    task "announce" {
      driver = "docker"

      lifecycle {
        hook = "poststop"
      }

      config {
        image   = "busybox:1.36"
        command = "/bin/echo"
        args    = ["the guest book is closed"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
