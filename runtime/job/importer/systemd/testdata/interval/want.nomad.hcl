job "poll" {
  type = "batch"

  periodic {
    crons            = ["*/15 * * * *"]
    time_zone        = "Local"
    prohibit_overlap = true
  }

  group "poll" {
    task "poll" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command  = "/bin/echo"
        args     = ["poll"]
        work_dir = "/"
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }
  }
}
