# Runs the solution of a student, without a network. A helper in the same group provides
# the tests over the loopback interface.

job "grader" {
  type = "batch"

  group "grader" {
    network {
      mode     = "none"
      hostname = "grader"
    }

    task "tests" {
      driver = "docker"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        image = "kvstore:7.2"
        args  = ["-listen", "127.0.0.1:6379"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "solution" {
      driver = "docker"

      config {
        image   = "busybox:1.36"
        command = "/bin/sh"
        args    = ["/local/solution.sh"]
      }

      template {
        destination = "local/solution.sh"
        data        = <<-EOT
          until answer=$(wget -q -O - http://127.0.0.1:6379/); do sleep 1; done
          echo "tests: $answer"
          echo "host: $(hostname), interfaces: $(ls /sys/class/net | tr '\n' ' ')"
        EOT
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
