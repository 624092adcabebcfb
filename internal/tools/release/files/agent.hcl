# Configuration of the nomad-lite agent, in the syntax of Nomad's. The service reads all files of this directory whose
# names end in .hcl or .json. After a change: nomad-lite config validate /etc/nomad-lite.d && systemctl reload nomad-lite
#
# Without a setting, the agent listens on 127.0.0.1:4646 and keeps its data in /var/lib/nomad-lite.

# plugin "raw_exec" {
#   config {
#     enabled = true
#   }
# }
