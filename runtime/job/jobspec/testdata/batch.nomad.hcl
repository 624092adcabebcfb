# Periodic and parameterized, with the shorthands of a job.
job "nightly" {
  id   = "nightly/report"
  type = "batch"

  periodic {
    crons            = ["0 3 * * *", "@weekly"]
    prohibit_overlap = true
    time_zone        = "Europe/Berlin"
    enabled          = false
  }

  parameterized {
    payload       = "required"
    meta_required = ["day"]
    meta_optional = ["dry_run"]
  }

  vault {
    role = "job"
  }

  secret "shared" {
    provider = "nomad"
    path     = "p"
  }

  task "solo" {
    driver = "raw_exec"
    secret "own" {}
  }

  group "rest" {
    vault {
      role = "group"
    }
    task "a" {
      driver = "raw_exec"
      vault {
        role = "task"
      }
    }
    task "b" {
      driver = "raw_exec"
    }
  }
}
