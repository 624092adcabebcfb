# old.service: A daemon of old

job "old" {
  group "old" {
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "old" {
      driver       = "raw_exec"
      kill_signal  = "SIGINT"
      kill_timeout = "30s"

      config {
        command  = "/bin/echo"
        args     = ["$NOT", "$$${REPLACED}"]
        work_dir = "/"
      }

      restart {
        attempts = 50
        interval = "5s"
        delay    = "100ms"
        mode     = "delay"
      }
    }
  }
}
