job "backup" {
  type = "batch"

  periodic {
    crons            = ["30 2 * * 1-5", "0 4 * * 0,6"]
    time_zone        = "Europe/Berlin"
    prohibit_overlap = true
  }

  group "backup" {
    task "backup" {
      driver       = "raw_exec"
      user         = "root"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command  = "/bin/echo"
        args     = ["backup"]
        work_dir = "/"
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }
  }
}
