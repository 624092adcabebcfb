job "override" {
  group "override" {
    network {
      port "web" {
        static = 8080
        to     = 80
      }
    }

    task "web" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/web:1"
        command           = "serve"
        args              = ["--dev"]
        memory_hard_limit = 2048
        ports             = ["web"]
        volumes           = ["/srv/override/src:/srv", "/srv/override/a:/a"]
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        KEEP = "1"
        MODE = "dev"
      }
    }
  }
}
