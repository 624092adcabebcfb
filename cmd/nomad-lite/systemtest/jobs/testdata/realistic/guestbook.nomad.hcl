# The guest book: a web application and its database, which share a network namespace. A task
# prepares the data before the first start, and another one says goodbye when the job is stopped.

job "guestbook" {
  group "guestbook" {
    network {
      mode = "bridge"
      port "http" {
        to = 8080
      }
    }

    service {
      name     = "guestbook"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/data/schema"
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

    task "web" {
      driver = "docker"

      config {
        image = "registry.example.com/shop/web:1.0.0"
      }

      env {
        DATABASE_URL = "http://127.0.0.1:6379"
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }

    # Only the tasks of the group reach the database.
    task "database" {
      driver = "docker"

      config {
        image = "kvstore:7.2"
        args  = ["-listen", "127.0.0.1:6379", "-dir", "/data"]

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
