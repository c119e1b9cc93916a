# Verbs and options are asked of the program itself.
function __numa_leasectl_verb
    string match --regex '^[a-z].*' -- (commandline -opc)[2..-1] | head -n 1
end
complete -c numa-leasectl -n 'test -z (__numa_leasectl_verb)' -f -a "(numa-leasectl --help | string replace --filter --regex '^  ([a-z][a-z-]*) +(.*)' '\$1\t\$2')"
complete -c numa-leasectl -a "(numa-leasectl (__numa_leasectl_verb) --help | string replace --filter --regex '^ +(?:-.,)?(--[a-z-]+).*' '\$1')"
