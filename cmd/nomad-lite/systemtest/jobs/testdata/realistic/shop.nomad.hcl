# The shop: a web application and its database, in two groups. The application finds the
# database through service discovery, and restarts when the database moves.

job "shop" {
  group "database" {
    network {
      port "db" {
        to = 6379
      }
    }

    service {
      name     = "shop-db"
      port     = "db"
      provider = "nomad"
    }

    task "kvstore" {
      driver = "docker"

      config {
        image = "kvstore:7.2"
        args  = ["-dir", "/alloc/data"]
        ports = ["db"]
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }

    # The data moves with the database to its next allocation.
    ephemeral_disk {
      size    = 500
      sticky  = true
      migrate = true
    }
  }

  group "web" {
    network {
      port "http" {
        to = 8080
      }
    }

    service {
      name     = "shop-web"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/healthz"
        interval = "2s"
        timeout  = "1s"
      }
    }

    task "web" {
      driver = "docker"

      config {
        image = "registry.example.com/shop/web:1.0.0"
        ports = ["http"]
      }

      # Without a database, the application runs and does not count.
      template {
        destination = "local/database.env"
        env         = true
        change_mode = "restart"
        data        = <<-ENV
          {{ range nomadService "shop-db" }}
          DATABASE_URL="http://{{ .Address }}:{{ .Port }}"
          {{ end }}
        ENV
      }

      env {
        GREETING = "everything must go"
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
