#!/usr/bin/env bash
# Validates job files, each on its own.
#
#   validate.sh [FLAG...] FILE...
#
# The flags are those of `nomad-lite job validate`, with their values after "=". The exit code is 1 if a file is not valid. On
# GitHub, each error and each warning with a position is also an annotation of its line.
set -euo pipefail

if ! command -v nomad-lite >/dev/null; then
	echo "validate.sh: PATH has no nomad-lite: install it from https://github.com/nomad-lite/nomad-lite/releases" >&2
	exit 127
fi
flags=()
while [[ ${1-} == -* ]]; do
	flags+=("$1")
	shift
done

# Text of a job file in an error could be a command to the runner, which is a line that starts with two colons.
print_output() {
	if [[ ${GITHUB_ACTIONS-} != true ]]; then
		printf '%s\n' "$1"
		return
	fi
	local token
	token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
	printf '::stop-commands::%s\n%s\n::%s::\n' "$token" "$1" "$token"
	sed -nE -e 's/%/%25/g' \
		-e 's/^Warning: (.+):([0-9]+),([0-9]+)-[0-9,]+: (.*)$/::warning file=\1,line=\2,col=\3::\4/p' -e t \
		-e 's/^(.+):([0-9]+),([0-9]+)-[0-9,]+: (.*)$/::error file=\1,line=\2,col=\3::\4/p' <<<"$1"
}

invalid=0
for file; do
	if output=$(nomad-lite job validate ${flags[@]+"${flags[@]}"} "$file" 2>&1); then
		echo "$file is valid"
		if [[ $output == *Warning:* ]]; then
			print_output "$output"
		fi
	else
		echo "$file is not valid" >&2
		print_output "$output" >&2
		invalid=1
	fi
done
exit "$invalid"
