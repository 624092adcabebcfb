# web.service: A web server

job "web" {
  group "web" {
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "web" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "5s"

      config {
        command  = "/bin/sh"
        args     = ["-c", "echo \"$GREETING on 8111 as $0\"; exec sleep 1000", "web"]
        work_dir = "/"
      }

      env {
        GREETING = "hello world"
        PORT     = "8111"
        ROOT     = "/tmp"
      }

      restart {
        attempts = 2
        interval = "5s"
        delay    = "2s"
        mode     = "delay"
      }
    }
  }
}
