# cleanup.service: Remove old files

job "cleanup" {
  type = "batch"

  group "cleanup" {
    task "cleanup" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command  = "/bin/sh"
        args     = ["-c", "/bin/sh -c 'echo in $PWD with %s' && exec /bin/echo 'tab\there' 'single \"quoted\"' 'back\\slash'"]
        work_dir = "/tmp"
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }
  }
}
