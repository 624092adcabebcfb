# Imports the exchange rates. The source is unreliable, so the import is tried several
# times before the job counts as failed.

job "exchange-rates" {
  type = "batch"

  group "import" {
    restart {
      attempts = 3
      interval = "10m"
      delay    = "1s"
      mode     = "fail"
    }

    task "import" {
      driver = "docker"

      config {
        image   = "busybox:1.36"
        command = "/bin/sh"
        args    = ["/local/import.sh"]
      }

      template {
        destination = "local/import.sh"
        data        = <<-EOT
          # The source answers at the third attempt.
          echo attempt >>/alloc/data/attempts
          attempts=$(wc -l </alloc/data/attempts)
          if [ "$attempts" -lt 3 ]; then
            echo "attempt $attempts: connection reset" >&2
            exit 1
          fi
          echo "attempt $attempts: 42 rates imported"
        EOT
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
