locals {
  service_names = ["db:127.0.0.1", "redis:127.0.0.1", "migrate:127.0.0.1", "web:127.0.0.1", "worker:127.0.0.1"]
}

job "shop" {
  group "shop" {
    network {
      mode = "bridge"

      port "db" {
        static       = 5432
        to           = 5432
        host_network = "loopback"
      }

      port "web" {
        static = 8000
        to     = 8000
      }
    }

    task "db" {
      driver         = "docker"
      kill_timeout   = "10s"
      shutdown_delay = "1s"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        image             = "postgres:17-alpine"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
        shm_size          = 134217728

        mount {
          type   = "volume"
          source = "shop_pgdata"
          target = "/var/lib/postgresql/data"
        }
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        POSTGRES_DB       = "shop"
        POSTGRES_PASSWORD = "s3cr3t$word"
        POSTGRES_USER     = "app"
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }

      service {
        name = "shop-db"
        port = "db"

        check {
          name                     = "healthcheck"
          type                     = "script"
          command                  = "/bin/sh"
          args                     = ["-c", "pg_isready -U $${POSTGRES_USER} -d $POSTGRES_DB"]
          interval                 = "5s"
          timeout                  = "3s"
          failures_before_critical = 9
        }
      }
    }

    task "redis" {
      driver         = "docker"
      kill_timeout   = "10s"
      shutdown_delay = "1s"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        image             = "redis:8"
        command           = "redis-server"
        args              = ["--save", "60", "1", "--loglevel", "warning"]
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }

      service {
        name = "shop-redis"

        check {
          name                     = "healthcheck"
          type                     = "script"
          command                  = "/bin/sh"
          args                     = ["-c", "redis-cli ping | grep PONG"]
          interval                 = "10s"
          timeout                  = "30s"
          failures_before_critical = 2
        }
      }
    }

    task "migrate" {
      driver       = "docker"
      kill_timeout = "10s"

      lifecycle {
        hook    = "prestart"
        sidecar = false
      }

      meta {
        lite_after = "db:healthy"
      }

      config {
        image             = "registry.example.com/shop:2.0"
        command           = "python"
        args              = ["manage.py", "migrate", "--noinput"]
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        CSRF_KEY               = "xyz"
        DATABASE_URL           = "postgres://app:s3cr3t$word@db:5432/shop"
        DEBUG                  = "0"
        DJANGO_SETTINGS_MODULE = "shop.settings"
        EMPTY                  = ""
        LITERAL                = "a$b"
        REDIS_URL              = "redis://redis:6379/0"
        SECRET_KEY             = "a b\"c"
        SESSION_KEY            = "abc"
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }

    task "web" {
      driver       = "docker"
      kill_timeout = "10s"

      meta {
        lite_after = "migrate:success, redis:healthy"
      }

      config {
        image             = "registry.example.com/shop:2.0"
        command           = "gunicorn"
        args              = ["shop.wsgi", "--bind", "0.0.0.0:8000", "--access-logfile", "-"]
        memory_hard_limit = 512
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 128
      }

      env {
        CSRF_KEY               = "xyz"
        DATABASE_URL           = "postgres://app:s3cr3t$word@db:5432/shop"
        DEBUG                  = "0"
        DJANGO_SETTINGS_MODULE = "shop.settings"
        EMPTY                  = ""
        LITERAL                = "a$b"
        REDIS_URL              = "redis://redis:6379/0"
        SECRET_KEY             = "a b\"c"
        SESSION_KEY            = "abc"
        WEB_CONCURRENCY        = "2"
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }
    }

    task "worker-1" {
      driver       = "docker"
      kill_timeout = "1m"

      meta {
        lite_after = "migrate:success, redis:started"
      }

      config {
        image             = "registry.example.com/shop:2.0"
        command           = "celery"
        args              = ["-A", "shop", "worker", "-l", "info"]
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        CSRF_KEY               = "xyz"
        DATABASE_URL           = "postgres://app:s3cr3t$word@db:5432/shop"
        DEBUG                  = "0"
        DJANGO_SETTINGS_MODULE = "shop.settings"
        EMPTY                  = ""
        LITERAL                = "a$b"
        REDIS_URL              = "redis://redis:6379/0"
        SECRET_KEY             = "a b\"c"
        SESSION_KEY            = "abc"
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }
    }

    task "worker-2" {
      driver       = "docker"
      kill_timeout = "1m"

      meta {
        lite_after = "migrate:success, redis:started"
      }

      config {
        image             = "registry.example.com/shop:2.0"
        command           = "celery"
        args              = ["-A", "shop", "worker", "-l", "info"]
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        CSRF_KEY               = "xyz"
        DATABASE_URL           = "postgres://app:s3cr3t$word@db:5432/shop"
        DEBUG                  = "0"
        DJANGO_SETTINGS_MODULE = "shop.settings"
        EMPTY                  = ""
        LITERAL                = "a$b"
        REDIS_URL              = "redis://redis:6379/0"
        SECRET_KEY             = "a b\"c"
        SESSION_KEY            = "abc"
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
