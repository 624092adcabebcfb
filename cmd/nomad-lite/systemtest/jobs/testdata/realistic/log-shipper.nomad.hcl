# An application that writes its access log to a file, and a sidecar that ships the file.

job "orders" {
  group "orders" {
    task "orders" {
      driver = "docker"

      config {
        image   = "busybox:1.36"
        command = "/bin/sh"
        args    = ["-c", "mkdir -p /alloc/data/log; i=0; while true; do i=$((i+1)); echo \"order=$i status=paid\" >>/alloc/data/log/orders.log; sleep 1; done"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "shipper" {
      driver = "docker"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        image   = "busybox:1.36"
        command = "/bin/sh"
        args    = ["-c", "until [ -e /alloc/data/log/orders.log ]; do sleep 1; done; exec tail -n +1 -f /alloc/data/log/orders.log"]
      }

      logs {
        max_files     = 2
        max_file_size = 5
      }

      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
