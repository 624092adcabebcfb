# Completion of nomad-lite for bash. It does not need the package bash-completion.
__nomad_lite_complete() {
	local line=${COMP_LINE:0:COMP_POINT} words current
	read -ra words <<<"$line"
	[[ $line == *[[:space:]] ]] && words+=("")
	current=${words[${#words[@]} - 1]}

	local output directive
	output=$("${words[0]}" __complete "${words[@]:1}" 2>/dev/null) || return
	directive=${output##*:}
	output=${output%:*}

	# The suggestions for -flag=value are values.
	[[ $current == -*=* ]] && current=${current#*=}
	# Readline replaces only the text after the last separator of the word.
	local kept=
	[[ $current == *[=:]* ]] && kept=${current%"${current##*[=:]}"}

	COMPREPLY=()
	if ((directive & 16)); then
		compopt -o dirnames
		return
	fi
	local suggestion
	((directive & 8)) || while IFS= read -r suggestion; do
		suggestion=${suggestion%%$'\t'*}
		[[ -n $suggestion && $suggestion == "$current"* ]] && COMPREPLY+=("${suggestion#"$kept"}")
	done <<<"$output"
	if ((directive & 2)); then
		compopt -o nospace
	fi
	if ((${#COMPREPLY[@]} == 0 && !(directive & 4))); then
		compopt -o default # names of files
	fi
}
complete -F __nomad_lite_complete nomad-lite
