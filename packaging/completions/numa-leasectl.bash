# bash completion of numa-leasectl: verbs and options are asked of the program itself.

_numa_leasectl_words() {
    numa-leasectl "$@" --help 2>/dev/null |
        awk '/^[Ss][Uu][Bb][Cc][Oo][Mm][Mm][Aa][Nn][Dd][Ss]:/ { verbs = 1; next }
             /^[^ ]/ { verbs = 0 }
             verbs && /^  [a-z]/ { print $1 }
             /^ +-/ { n = split($1, names, ","); for (i = 1; i <= n; i++) if (names[i] ~ /^--/) print names[i] }'
}

_numa_leasectl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb='' i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        run | exec | plan)
            verb=${COMP_WORDS[i]}
            # Behind `--` the command completes itself.
            for ((; i < COMP_CWORD; i++)); do
                [[ ${COMP_WORDS[i]} != -- ]] || {
                    declare -F _command_offset >/dev/null && _command_offset $((i + 1))
                    return
                }
            done
            ;;
        [a-z]*) verb=${verb:-${COMP_WORDS[i]}} ;;
        esac
    done
    case $prev in
    --model | --report | --daemon-socket | --runtime-dir)
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    --policy)
        mapfile -t COMPREPLY < <(compgen -W "$(numa-leasectl --json policy list 2>/dev/null |
            sed -n '/^  "policies":/,$s/^      "name": "\([^"]*\)".*/\1/p')" -- "$cur")
        return
        ;;
    show | wait | release | stop | extend | exec | where | ask)
        mapfile -t COMPREPLY < <(compgen -W "$(numa-leasectl --json list 2>/dev/null |
            sed -n 's/^ *"id": "\([^"]*\)".*/\1/p')" -- "$cur")
        [[ ${#COMPREPLY[@]} -eq 0 ]] || return
        ;;
    esac
    # shellcheck disable=SC2086 # no verb is no word
    mapfile -t COMPREPLY < <(compgen -W "$(_numa_leasectl_words $verb)" -- "$cur")
}
complete -F _numa_leasectl numa-leasectl
