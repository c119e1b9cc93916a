#compdef numa-leasectl
# Verbs and options are asked of the program itself.
local -a verbs options
local verb=${${words[2,CURRENT-1]:#-*}[1]}
integer dashes=${words[(Ie)--]}
if ((dashes && CURRENT > dashes)); then # the command completes itself
    words=("${(@)words[dashes+1,-1]}")
    ((CURRENT -= dashes))
    _normal
    return
fi
verbs=(${(f)"$(numa-leasectl --help | sed -n '/^S[Uu][Bb].*:/,$s/^  \([a-z][a-z-]*\)  *\(.*\)/\1:\2/p')"})
options=(${(f)"$(numa-leasectl $verb --help | sed -n 's/^ *\(-[^ ]*,\)\{0,1\}\(--[a-z-]*\).*/\2/p')"})
[[ -n $verb ]] || _describe verb verbs
compadd -a options
_files
