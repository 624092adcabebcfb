job "api" {
  group "api" {
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "api" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "2m"

      config {
        command  = "/bin/sleep"
        args     = ["1000"]
        work_dir = "/"
      }

      env {
        LEVEL = "info"
        MODE  = "new"
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }
  }
}
