locals {
  service_names = ["db:127.0.0.1", "wordpress:127.0.0.1"]
}

job "wordpress" {
  group "wordpress" {
    network {
      mode = "bridge"

      port "wordpress" {
        static = 8080
        to     = 80
      }
    }

    task "db" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "mariadb:11"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names

        mount {
          type   = "volume"
          source = "wordpress_db_data"
          target = "/var/lib/mysql"
        }
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        MARIADB_DATABASE      = "wordpress"
        MARIADB_PASSWORD      = "wordpress"
        MARIADB_ROOT_PASSWORD = "somewordpress"
        MARIADB_USER          = "wordpress"
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }
    }

    task "wordpress" {
      driver       = "docker"
      kill_timeout = "10s"

      meta {
        lite_after = "db:started"
      }

      config {
        image             = "wordpress:6-apache"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        WORDPRESS_DB_HOST     = "db"
        WORDPRESS_DB_NAME     = "wordpress"
        WORDPRESS_DB_PASSWORD = "wordpress"
        WORDPRESS_DB_USER     = "wordpress"
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }
    }
  }
}
