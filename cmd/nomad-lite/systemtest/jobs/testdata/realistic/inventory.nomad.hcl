# Takes stock of the software of all machines, once.

job "inventory" {
  type = "sysbatch"

  group "inventory" {
    task "kernel" {
      driver = "raw_exec"

      config {
        command = "/bin/uname"
        args    = ["-srm"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "container" {
      driver = "docker"

      config {
        image   = "busybox:1.36"
        command = "/bin/sh"
        args    = ["-c", "echo runtime: $(busybox | head -n 1)"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
