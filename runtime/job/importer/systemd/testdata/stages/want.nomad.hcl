job "migrate" {
  group "migrate" {
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "migrate" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command  = "/bin/sh"
        args     = ["-c", "/bin/sh -c 'echo first' && { /bin/false || :; } && exec /bin/echo second"]
        work_dir = "/"
      }

      lifecycle {
        hook    = "prestart"
        sidecar = false
      }

      meta {
        lite_after = "store:started"
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }

    task "store" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command  = "/bin/sleep"
        args     = ["1000"]
        work_dir = "/"
      }

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }

    task "web" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command  = "/bin/sleep"
        args     = ["1000"]
        work_dir = "/"
      }

      meta {
        lite_after = "migrate:success"
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }

    task "report" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command  = "/bin/echo"
        args     = ["report"]
        work_dir = "/"
      }

      lifecycle {
        hook    = "poststart"
        sidecar = false
      }

      meta {
        lite_after = "web:started"
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }
  }
}
