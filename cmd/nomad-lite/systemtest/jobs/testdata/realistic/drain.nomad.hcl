# A web application that completes its requests before it stops: it leaves the service
# first, gets SIGTERM five seconds later, and has twenty seconds to exit.

job "checkout" {
  group "checkout" {
    shutdown_delay = "5s"

    network {
      port "http" {
        to = 8080
      }
    }

    service {
      name     = "checkout"
      port     = "http"
      provider = "nomad"
    }

    task "web" {
      driver       = "docker"
      kill_signal  = "SIGTERM"
      kill_timeout = "20s"

      config {
        image = "registry.example.com/shop/web:1.0.0"
        ports = ["http"]
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
