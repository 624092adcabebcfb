# Sums the sales of a day by country, with programs of the machine. The first task downloads and
# unpacks the export, the second computes the report, the last one publishes it.

variable "export_url" {
  type = string
}

job "sales-report" {
  type = "batch"

  group "report" {
    # A directory of the machine that nobody, the user of the tasks, can write to.
    volume "reports" {
      type   = "host"
      source = "reports"
    }

    restart {
      attempts = 1
      delay    = "2s"
      mode     = "fail"
    }

    task "extract" {
      driver = "exec"

      lifecycle {
        hook = "prestart"
      }

      artifact {
        source      = "${var.export_url}"
        destination = "local/export"
      }

      config {
        command = "/bin/sh"
        args    = ["-ec", "cp /local/export/*.csv /alloc/data/; wc -l /alloc/data/*.csv"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "transform" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["/local/transform.sh"]
      }

      template {
        destination = "local/transform.sh"
        data        = <<-EOT
          set -e
          cat /alloc/data/*.csv | awk -F, 'NR > 1 { sum[$1] += $2 } END { for (c in sum) print c "," sum[c] }' | sort >/alloc/data/report.csv
          cat /alloc/data/report.csv
        EOT
      }

      resources {
        cpu    = 200
        memory = 64
      }
    }

    task "publish" {
      driver = "exec"

      lifecycle {
        hook = "poststop"
      }

      config {
        command = "cp"
        args    = ["-v", "${NOMAD_ALLOC_DIR}/data/report.csv", "/reports/sales-${NOMAD_JOB_NAME}.csv"]
      }

      volume_mount {
        volume      = "reports"
        destination = "/reports"
      }

      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
