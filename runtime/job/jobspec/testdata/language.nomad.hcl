# Variables, locals, functions and dynamic blocks.
variable "image" {
  description = "what to run"
  type        = string
  default     = "redis:7"
}

variable "ports" {
  type    = map(number)
  default = { http = 80, admin = 0 }

  validation {
    condition     = length(var.ports) > 0
    error_message = "Give one port at least."
  }
}

variable "limits" {
  type    = object({ cpu = number, tags = list(string) })
  default = { cpu = "250", tags = ["a", "b"] }
}

variables {
  replicas = 2
  enabled  = true
}

locals {
  names = [for i in range(var.replicas) : format("web-%02d", i)]
  tag   = "${upper(var.image)}@${local.names[0]}"
}

locals {
  host = "${attr.unique.hostname}:${var.ports.http}"
  env  = merge({ A = "1" }, { B = var.enabled ? "yes" : "no" })
}

job "language" {
  meta {
    names   = join(",", local.names)
    tag     = local.tag
    limits  = jsonencode(var.limits)
    sum     = sum_is_no_function.of.ours
    sha     = substr(sha256("x"), 0, 8)
    yaml    = yamlencode({ a = [1, "b"] })
    net     = cidrhost("10.0.0.0/24", 5)
    set     = jsonencode(setproduct(["a", "b"], ["c"]))
    regex   = regex_replace("a-b-c", "-(.)", "<$1>")
    id      = uuidv5("dns", "example.com")
    csv     = jsonencode(csvdecode("a,b\n1,2\n"))
    default = try(var.limits.missing, "none")
    each    = "%{for n in local.names}[${n}]%{endfor}"
    strip   = "%{if var.enabled ~}  on %{~else~} off %{~endif}"
  }

  dynamic "group" {
    for_each = local.names
    iterator = replica
    labels   = [replica.value]

    content {
      count = replica.key + 1

      network {
        dynamic "port" {
          for_each = var.ports
          labels   = [port.key]
          content {
            static = port.value
            to     = replica.key == 0 ? 1000 : 2000
          }
        }
      }

      task "main" {
        driver = "docker"

        config {
          image = var.image
          name  = replica.value
          hosts = [for name, port in var.ports : "${name}=${port}@${local.host}"]
          env   = local.env
          dynamic "not_expanded" {
            for_each = var.ports
            content {
              value = not_expanded.value
            }
          }
        }

        env = local.env

        dynamic "template" {
          for_each = toset_is_not_there == "x" ? [] : ["one", "two"]
          content {
            data        = "${replica.value} ${template.value} ${env.HOME} ${ NOMAD_TASK_DIR }"
            destination = "local/${template.key}"
          }
        }
      }
    }
  }
}
