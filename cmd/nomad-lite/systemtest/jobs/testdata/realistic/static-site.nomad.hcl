# The home page: static files, rendered from a template and served by busybox.

variable "headline" {
  type    = string
  default = "Welcome"
}

job "static-site" {
  datacenters = ["dc1"]
  type        = "service"

  update {
    max_parallel     = 1
    min_healthy_time = "1s"
    healthy_deadline = "1m"
    auto_revert      = true
  }

  group "site" {
    network {
      port "http" {
        to = 8080
      }
    }

    service {
      name     = "static-site"
      port     = "http"
      provider = "nomad"
      tags     = ["public"]

      check {
        type     = "http"
        path     = "/index.html"
        interval = "2s"
        timeout  = "1s"
      }
    }

    task "httpd" {
      driver = "docker"

      config {
        image   = "busybox:1.36"
        command = "httpd"
        args    = ["-f", "-v", "-p", "8080", "-h", "/local/www"]
        ports   = ["http"]
      }

      template {
        destination = "local/www/index.html"
        data        = <<-HTML
          <html>
            <body><h1>${var.headline}</h1></body>
          </html>
        HTML
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
