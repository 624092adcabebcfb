# nomad-lite var put nomad/jobs/warm password=s3cret, then nomad-lite job run example.nomad.hcl:
# the deployment succeeds when three requests in a row were answered with 200.
job "warm" {
  group "web" {
    network {
      port "http" {}
    }

    update {
      min_healthy_time  = "0s"
      healthy_deadline  = "40s"
      progress_deadline = "1m"
    }

    task "server" {
      driver = "raw_exec"

      meta {
        lite_hook_warmup = jsonencode({
          http = {
            path   = "/warm"
            port   = "http"
            header = { name = "X-Warmup-Password", variable = "nomad/jobs/warm", item = "password" }
          }
          successes = 3
          interval  = "500ms"
          timeout   = "20s"
        })
      }

      template {
        destination = "local/server.py"
        data        = <<-EOT
          import http.server, os

          requests = 0

          class Handler(http.server.BaseHTTPRequestHandler):
              def do_GET(self):
                  global requests
                  requests += 1
                  allowed = self.headers.get("X-Warmup-Password") == "s3cret"
                  self.send_response(403 if not allowed else 503 if requests < 3 else 200)
                  self.end_headers()

          http.server.HTTPServer(("", int(os.environ["NOMAD_PORT_http"])), Handler).serve_forever()
        EOT
      }

      config {
        command = "/usr/bin/env"
        args    = ["python3", "local/server.py"]
      }
    }
  }
}
