# app.service: The application
# db.service: The database

job "shop" {
  group "shop" {
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "app-pre-1" {
      driver       = "exec"
      kill_signal  = "SIGQUIT"
      kill_timeout = "30s"

      config {
        command  = "/bin/sh"
        args     = ["-c", "{ /bin/rm -f /tmp/nomad-lite-import-app.pid || :; }"]
        work_dir = "/"
      }

      lifecycle {
        hook    = "prestart"
        sidecar = false
      }

      meta {
        lite_after = "db:started"
        lite_rerun = "restart"
      }

      env {
        SECONDS = "1000"
      }

      resources {
        cpu    = 500
        memory = 256
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }

    task "app-pre-2" {
      driver       = "exec"
      kill_signal  = "SIGQUIT"
      kill_timeout = "30s"

      config {
        command  = "/bin/sh"
        args     = ["-c", "echo prepared"]
        work_dir = "/"
      }

      lifecycle {
        hook    = "prestart"
        sidecar = false
      }

      meta {
        lite_after = "app-pre-1:success"
        lite_rerun = "restart"
      }

      env {
        SECONDS = "1000"
      }

      resources {
        cpu    = 500
        memory = 256
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }

    task "app" {
      driver       = "exec"
      kill_signal  = "SIGQUIT"
      kill_timeout = "30s"

      config {
        command  = "/bin/sleep"
        args     = ["1000"]
        work_dir = "/"
      }

      meta {
        lite_after = "app-pre-2:success"
      }

      env {
        SECONDS = "1000"
      }

      resources {
        cpu    = 500
        memory = 256
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "1s"
        mode     = "fail"
      }
    }

    task "app-post" {
      driver       = "exec"
      kill_signal  = "SIGQUIT"
      kill_timeout = "30s"

      config {
        command  = "/bin/echo"
        args     = ["started"]
        work_dir = "/"
      }

      lifecycle {
        hook = "poststart"
      }

      meta {
        lite_after = "app:started"
        lite_rerun = "restart"
      }

      env {
        SECONDS = "1000"
      }

      resources {
        cpu    = 500
        memory = 256
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }

    task "db" {
      driver       = "exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command  = "/bin/sh"
        args     = ["-c", "echo the database runs; exec sleep 1000"]
        work_dir = "/"
      }

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      restart {
        attempts = 5
        interval = "10s"
        delay    = "100ms"
        mode     = "fail"
      }
    }
  }
}
