# completion.bash - what bash completes after `lapse`: commands, options, states, reasons, files.
#
# shellcheck shell=bash
# The words come from the tool's own --help, so that they cannot differ from it.

_lapse_words() {
    lapse "$@" --help 2>/dev/null | sed -n \
        -e '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' \
        -e 's/^  \(-.\|  \)[, ] \(--[a-z-]*\).*/\2/p'
}

_lapse() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=() i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        -u | --url) i=$((i + 1)) ;;
        -*) ;;
        *)
            command=("${COMP_WORDS[i]}")
            break
            ;;
        esac
    done
    case $before in
    --payload-file) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    -s | --state) mapfile -t COMPREPLY < <(compgen -W "pending running done dead" -- "$word") ;;
    -r | --reason)
        mapfile -t COMPREPLY < <(compgen -W "failed rejected expired maxlen lost" -- "$word")
        ;;
    -u | --url) mapfile -t COMPREPLY < <(compgen -W "memory: sqlite:///" -- "$word") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$(_lapse_words "${command[@]}")" -- "$word") ;;
    esac
}

complete -F _lapse lapse
