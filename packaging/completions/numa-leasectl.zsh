#compdef numa-leasectl
# Verbs and options are asked of the program itself.
local -a verbs options
local verb=${words[(r)[a-z]*]:#numa-leasectl}
verb=${${(M)words[2,CURRENT-1]:#[a-z]*}[1]}
if [[ -n ${words[(r)--]} ]] && (( CURRENT > ${words[(i)--]} )); then
    _normal
    return
fi
verbs=(${(f)"$(numa-leasectl --help | sed -n '/^S[Uu][Bb].*:/,$s/^  \([a-z][a-z-]*\)  *\(.*\)/\1:\2/p')"})
options=(${(f)"$(numa-leasectl ${verb} --help | sed -n 's/^ *\(-[^ ]*,\)\{0,1\}\(--[a-z-]*\).*/\2/p')"})
[[ -n $verb ]] || _describe verb verbs
compadd -a options
_files
