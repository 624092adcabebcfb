# worker@mail-out.service: Worker mail-out of worker

job "worker-mail-out" {
  group "worker-mail-out" {
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "worker-mail-out" {
      driver       = "raw_exec"
      user         = "root"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command  = "/bin/sh"
        args     = ["-c", "echo $QUEUE $NAME $ESCAPED; exec sleep 1000"]
        work_dir = "/"
      }

      env {
        ESCAPED         = "mail/out"
        FILE            = "/mail/out"
        NAME            = "worker@mail-out.service"
        QUEUE           = "mail-out"
        STATE           = "/var/lib/worker"
        STATE_DIRECTORY = "/var/lib/worker"
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }
  }
}
