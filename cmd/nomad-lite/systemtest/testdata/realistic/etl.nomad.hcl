# Sums the sales of a day by country. The first task downloads and unpacks the export, the
# second computes the report, the last one publishes it.

variable "export_url" {
  type = string
}

variable "report_dir" {
  type = string
}

job "sales-report" {
  type = "batch"

  group "report" {
    restart {
      attempts = 1
      delay    = "2s"
      mode     = "fail"
    }

    task "extract" {
      driver = "docker"

      lifecycle {
        hook = "prestart"
      }

      artifact {
        source      = "${var.export_url}"
        destination = "local/export"
      }

      config {
        image   = "busybox:1.36"
        command = "/bin/sh"
        args    = ["-ec", "cp /local/export/*.csv /alloc/data/; wc -l /alloc/data/*.csv"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "transform" {
      driver = "docker"

      config {
        image   = "busybox:1.36"
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
      driver = "raw_exec"

      lifecycle {
        hook = "poststop"
      }

      config {
        command = "/bin/cp"
        args    = ["${NOMAD_ALLOC_DIR}/data/report.csv", "${var.report_dir}/sales-${NOMAD_JOB_NAME}.csv"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
